// Pause holds a pod's namespaces open, and does nothing else, until it is told to end.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
	// Where the pod shares one process namespace this is process 1, so orphans end up here.
	signal.Ignore(syscall.SIGCHLD)
	<-ended
}
