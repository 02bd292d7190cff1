package rig

import (
	"bufio"
	"io"
	"net"
)

// answer is what an upstream says to every request. It takes a request for complete at its first
// empty line, so it is for GETs only.
const answer = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"

// StartUpstream starts what proxies stand before. It answers every GET with a few bytes, until the
// listener is closed.
func StartUpstream() (net.Listener, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go answerAll(c)
		}
	}()
	return l, nil
}

func answerAll(c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return
		}
		if len(line) > 2 {
			continue
		}
		if _, err := io.WriteString(c, answer); err != nil {
			return
		}
	}
}
