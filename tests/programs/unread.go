// A server as unread.py, over TLS: HTTP/1.1 or HTTP/2, as ALPN selects. Argument: address.
package main

import (
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
)

func serve(response http.ResponseWriter, request *http.Request) {
	target := request.RequestURI
	switch {
	case strings.HasPrefix(target, "/unread"):
		<-request.Context().Done()
		return
	case !strings.HasPrefix(target, "/early"):
		io.Copy(io.Discard, request.Body)
	}
	response.Header().Set("content-length", strconv.Itoa(len(target)))
	io.WriteString(response, target)
}

func main() {
	err := http.ListenAndServeTLS(os.Args[1], "server.pem", "server.key", http.HandlerFunc(serve))
	panic(err)
}
