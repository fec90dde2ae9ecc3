module omnistage/laboratory/pause

go 1.24.0
