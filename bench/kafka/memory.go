package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/internal/loadgen"
)

const (
	idleGoal = 24 // KiB a connection
	slowGoal = 64 // MiB for all

	dialers   = 16 // at once: a broker's backlog is 50
	slowFetch = 50 << 20
	slowRead  = 16 << 10 // at a time, ten times a second
)

// rest measures the memory of connections that have been used and rest now.
func (b *bench) rest(ctx context.Context, s *site) error {
	table := kit.Table{{"way", "before, MiB", "after, MiB", "KiB a connection", "goal"}}
	err := s.eachRelay(ctx, func(w *way, judged bool) error {
		if err := s.warm(ctx, w); err != nil {
			return err
		}
		before := w.Usage().Resident
		lines, err := s.connect(ctx, w, b.idle, (*line).begin)
		defer closeAll(lines)
		if err != nil {
			return err
		}
		if err := loadgen.Pause(ctx, 3*b.turn); err != nil {
			return err
		}
		after := w.Usage().Resident
		each := kit.SpreadOf([]float64{(mib(after) - mib(before)) * 1024 / float64(b.idle)})
		row := []string{w.title(), fmt.Sprintf("%.1f", mib(before)), fmt.Sprintf("%.1f", mib(after)), fmt.Sprintf("%.1f", each.Median), ""}
		if judged {
			v := (&kit.Goal{What: "KiB", Bound: idleGoal, AtMost: true}).Judge(each)
			row[4] = v.String()
		}
		table = append(table, row)
		return nil
	})
	if err != nil {
		return err
	}
	b.print(fmt.Sprintf("%d connections that rest, after a login's worth of requests and a fetch: memory of the relay", b.idle), table)
	return nil
}

// stall measures the largest memory while clients read answers slowly.
func (b *bench) stall(ctx context.Context, s *site) error {
	table := kit.Table{{"way", "before, MiB", "largest, MiB", "more, MiB", "goal"}}
	err := s.eachRelay(ctx, func(w *way, judged bool) error {
		if err := s.warm(ctx, w); err != nil {
			return err
		}
		before := w.Usage().Resident
		lines, err := s.connect(ctx, w, b.slow, (*line).askMuch)
		defer closeAll(lines)
		if err != nil {
			return err
		}
		if err := dawdle(ctx, lines, 10*b.turn); err != nil {
			return err
		}
		peak := w.Usage().Peak
		more := kit.SpreadOf([]float64{mib(peak) - mib(before)})
		row := []string{w.title(), fmt.Sprintf("%.1f", mib(before)), fmt.Sprintf("%.1f", mib(peak)), fmt.Sprintf("%.1f", more.Median), ""}
		if judged {
			v := (&kit.Goal{What: "MiB", Bound: slowGoal, AtMost: true}).Judge(more)
			row[4] = v.String()
		}
		table = append(table, row)
		return nil
	})
	if err != nil {
		return err
	}
	b.print(fmt.Sprintf("%d clients that read answers of %d MiB at %d KiB/s: memory of the relay, without the kernel's buffers", b.slow, slowFetch>>20, slowRead*10>>10), table)
	return nil
}

// eachRelay starts nginx and the gateway, plain and with TLS, one after the other. A goal is for the gateway without TLS.
func (s *site) eachRelay(ctx context.Context, measure func(w *way, judged bool) error) error {
	for _, withTLS := range []bool{false, true} {
		for _, begin := range []func(context.Context, bool) (way, error){s.throughNginx, s.throughWeir} {
			w, err := begin(ctx, withTLS)
			if err != nil {
				return err
			}
			err = measure(&w, !withTLS && !w.fixed)
			w.Stop()
			if err != nil {
				return fmt.Errorf("%s: %w", w.title(), err)
			}
		}
	}
	return nil
}

// title names the way, with TLS or without.
func (w *way) title() string {
	if w.tls != nil {
		return w.name + ", TLS"
	}
	return w.name
}

// warm uses the way once, so that what follows is the memory of connections and not of code.
func (s *site) warm(ctx context.Context, w *way) error {
	lines, err := s.connect(ctx, w, dialers, (*line).begin)
	closeAll(lines)
	return err
}

// connect opens so many connections, and does something on each.
func (s *site) connect(ctx context.Context, w *way, n int, do func(*line) error) ([]*line, error) {
	lines := make([]*line, n)
	errs := make([]error, dialers)
	var all sync.WaitGroup
	for d := range dialers {
		all.Go(func() {
			for i := d; i < n && errs[d] == nil; i += dialers {
				if lines[i], errs[d] = w.dial(ctx); errs[d] == nil {
					errs[d] = do(lines[i])
				}
			}
		})
	}
	all.Wait()
	return lines, errors.Join(errs...)
}

func closeAll(lines []*line) {
	for _, l := range lines {
		if l != nil {
			_ = l.Close() // there is nothing to lose
		}
	}
}

// line is a connection with nothing between this program and its bytes.
type line struct{ net.Conn }

const answerWithin = time.Minute

func (w *way) dial(ctx context.Context) (*line, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", w.addr)
	if err != nil {
		return nil, err
	}
	if err := c.SetDeadline(time.Now().Add(answerWithin)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if w.tls != nil {
		conf := w.tls.Clone()
		conf.ServerName, _, _ = net.SplitHostPort(w.addr)
		c = tls.Client(c, conf)
	}
	return &line{c}, nil
}

// begin does what clients do first, and a small fetch.
func (l *line) begin() error {
	versions, metadata := kmsg.NewPtrApiVersionsRequest(), kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = kmsg.StringPtr(read)
	metadata.Topics = append(metadata.Topics, topic)
	for _, req := range []kmsg.Request{versions, at(metadata, 8), fetch(32 << 10)} {
		n, err := l.ask(req)
		if err == nil {
			_, err = io.CopyN(io.Discard, l, n)
		}
		if err != nil {
			return err
		}
	}
	return l.SetDeadline(time.Time{})
}

// askMuch asks for a large answer, and reads its beginning.
func (l *line) askMuch() error {
	n, err := l.ask(fetch(slowFetch))
	if err == nil && n < slowFetch/2 {
		err = fmt.Errorf("an answer to Fetch of %d bytes", n)
	}
	return errors.Join(err, l.SetDeadline(time.Time{}))
}

// ask sends a request, and returns how long the answer is behind its size.
func (l *line) ask(req kmsg.Request) (int64, error) {
	if _, err := l.Write(kmsg.NewRequestFormatter(kmsg.FormatterClientID("bench")).AppendRequest(nil, req, 1)); err != nil {
		return 0, err
	}
	var size [4]byte
	if _, err := io.ReadFull(l, size[:]); err != nil {
		return 0, err
	}
	return int64(binary.BigEndian.Uint32(size[:])), nil
}

func at(req kmsg.Request, version int16) kmsg.Request {
	req.SetVersion(version)
	return req
}

// fetch asks for so many bytes of a partition.
func fetch(most int32) kmsg.Request {
	req := kmsg.NewPtrFetchRequest()
	req.MaxBytes, req.MinBytes = most, 1
	topic, partition := kmsg.NewFetchRequestTopic(), kmsg.NewFetchRequestTopicPartition()
	partition.PartitionMaxBytes = most
	topic.Topic, topic.Partitions = read, append(topic.Partitions, partition)
	req.Topics = append(req.Topics, topic)
	return at(req, 11)
}

// dawdle reads a little of each answer, again and again.
func dawdle(ctx context.Context, lines []*line, length time.Duration) error {
	buf := make([]byte, slowRead)
	for end := time.Now().Add(length); time.Now().Before(end); {
		for _, l := range lines {
			if err := l.SetDeadline(time.Now().Add(answerWithin)); err != nil {
				return err
			}
			if _, err := io.ReadFull(l, buf); err != nil {
				return err
			}
		}
		if err := loadgen.Pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func mib(bytes uint64) float64 { return float64(bytes) / (1 << 20) }
