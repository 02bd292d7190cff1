package attempt

import (
	"errors"
	"net"
	"os"
	"strings"
)

// LacksMeans reports whether err is for want of a file descriptor or of memory, in this process or on its host. By err no
// connection could be made. The want says nothing about the server. To lack a local address does: a host without IPv6
// has none for a server of IPv6.
func LacksMeans(err error) bool {
	if isLack(err) {
		return true
	}
	var lookup *net.DNSError
	return errors.As(err, &lookup) && (SaysLackOfMeans(lookup.Err) || noDescriptor())
}

func isLack(err error) bool {
	for _, lack := range means {
		if errors.Is(err, lack) {
			return true
		}
	}
	return false
}

// noDescriptor reports whether this process can open nothing now. The error of a lookup may hide that: it is about the last
// name that was tried, of a search list perhaps. And who cannot open /etc/resolv.conf asks a server on this host, or says
// something else altogether, as the C library does.
func noDescriptor() bool {
	f, err := os.Open(os.DevNull)
	if err != nil {
		return isLack(err)
	}
	_ = f.Close()
	return false
}

// SaysLackOfMeans is [LacksMeans] for what keeps an error as text only, as a failed lookup of a name does.
func SaysLackOfMeans(text string) bool {
	for _, lack := range means {
		if strings.Contains(text, lack.Error()) {
			return true
		}
	}
	return false
}
