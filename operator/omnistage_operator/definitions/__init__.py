"""The cluster's definitions of the four kinds, generated from their models.

`python -m omnistage_operator.definitions --write charts/omnistage/definitions` writes them, a test
holds the committed files in step. `schema` turns models into structural schemas, `rules` and
`topology_rules` are what a schema alone cannot say, `columns` is how each kind appears to `kubectl`,
and `writing` puts it all together. Nothing here talks to a cluster.
"""
