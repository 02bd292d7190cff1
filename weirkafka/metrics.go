package weirkafka

import (
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// Metric is one series of an [Admission], for any library of metrics.
type Metric struct {
	// Name is the full name, with the prefix. Help describes the metric.
	Name, Help string
	// Database is the label. It is empty for the lag, which is common to all databases.
	Database string
	// Value is the value of a gauge: permits, or messages.
	Value float64
	// Histogram is the histogram of the waits, nil for a gauge.
	Histogram *Histogram

	ofAll bool // the series is of all databases, without a label
}

// Histogram is how long work has waited.
type Histogram struct {
	// Count is the number of waits, Sum their seconds.
	Count uint64
	Sum   float64
	// Within has, for each of WaitBuckets, how many waits lasted at most so many seconds.
	Within []uint64
}

// EvidentDB's names, which follow a prefix.
const (
	waitName     = "_admission_control_wait"
	capacityName = "_admission_control_capacity"
	lagName      = "_kafka_consumer_lag"
)

// isMetricName reports whether a prefix can begin these names.
func isMetricName(prefix string) bool {
	illegal := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_'
	}
	return prefix != "" && (prefix[0] < '0' || prefix[0] > '9') && !strings.ContainsFunc(prefix, illegal)
}

// WaitBuckets are the bounds of the histogram, in seconds.
func WaitBuckets() []float64 { return slices.Clone(waitBuckets[:]) }

var waitBuckets = [...]float64{0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}

// MaxSeries is how many databases have series of their own: the first whose work is admitted. All others count
// as [OtherDatabases], as do those whose names have more than 128 bytes or are not UTF-8. If a database has
// admitted nothing for an hour, another database may get its series. Its own series, if it gets one again,
// starts from 0, as after a restart.
const MaxSeries = 100

// OtherDatabases is the label of databases without series of their own.
const OtherDatabases = "other"

const longestLabel = 128

// idleSeries is the time without admitted work after which another database may get a series.
const idleSeries = time.Hour

// waits are the waits of each database. The zero value is ready to use.
type waits struct {
	mu     sync.RWMutex
	of     map[string]*wait
	other  wait
	wanted atomic.Bool // a database has found no place
}

type wait struct {
	within      [len(waitBuckets) + 1]atomic.Uint64 // not cumulative; the last is for longer waits
	nanoseconds atomic.Int64

	// Set when the metrics are read, under waits.mu.
	seen  uint64    // the number of waits at the last change
	since time.Time // when that number was first seen
}

func (w *waits) observe(database string, d time.Duration) {
	one := w.findOrAdd(database)
	at, _ := slices.BinarySearch(waitBuckets[:], d.Seconds())
	one.within[at].Add(1)
	one.nanoseconds.Add(int64(d))
}

// findOrAdd returns the waits of a database, or of OtherDatabases if there is no place for it.
func (w *waits) findOrAdd(database string) *wait {
	if len(database) > longestLabel || database == OtherDatabases || !utf8.ValidString(database) {
		return &w.other
	}
	w.mu.RLock()
	one, full := w.of[database], len(w.of) >= MaxSeries
	w.mu.RUnlock()
	switch {
	case one != nil:
		return one
	case full:
		if !w.wanted.Load() {
			w.wanted.Store(true)
		}
		return &w.other
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if one = w.of[database]; one != nil {
		return one
	}
	if len(w.of) >= MaxSeries {
		return &w.other
	}
	if w.of == nil {
		w.of = map[string]*wait{}
	}
	one = &wait{}
	w.of[strings.Clone(database)] = one // the clone keeps no request in memory
	return one
}

// all returns the waits by database, as the metrics show them now. If another database wants a place, all frees
// the places of idle databases.
func (w *waits) all(now time.Time) map[string]*wait {
	w.mu.Lock()
	defer w.mu.Unlock()
	wanted := w.wanted.Swap(false)
	for name, one := range w.of {
		switch n := one.count(); {
		case n != one.seen || one.since.IsZero():
			one.seen, one.since = n, now
		case wanted && now.Sub(one.since) >= idleSeries:
			delete(w.of, name)
		}
	}
	return maps.Clone(w.of)
}

// label returns the name of a database for a line of the log, or OtherDatabases if the name is too long.
func label(database string) string {
	if len(database) > longestLabel {
		return OtherDatabases
	}
	return database
}

func (w *wait) count() (n uint64) {
	for i := range w.within {
		n += w.within[i].Load()
	}
	return n
}

func (w *wait) histogram() *Histogram {
	h := &Histogram{Within: make([]uint64, len(waitBuckets)), Sum: time.Duration(w.nanoseconds.Load()).Seconds()}
	for i := range h.Within {
		h.Count += w.within[i].Load()
		h.Within[i] = h.Count
	}
	h.Count += w.within[len(waitBuckets)].Load()
	return h
}

// Metrics returns the series of the gate, sorted by name, then by database:
//
//	PREFIX_admission_control_capacity  gauge, permits by database
//	PREFIX_admission_control_wait      histogram, seconds that admitted work has waited, by database
//	PREFIX_kafka_consumer_lag          gauge, messages; left out while the lag is unknown
//
// The names are those of EvidentDB, after a prefix of your own. A disabled gate has no series.
func (a *Admission) Metrics() iter.Seq[Metric] {
	return func(yield func(Metric) bool) {
		if a.pools == nil {
			return
		}
		of := a.waits.all(time.Now())
		names := slices.Sorted(maps.Keys(of))
		for _, database := range names {
			use, _ := a.pools.Key(database)
			if !yield(a.capacity(database, use.Limit)) {
				return
			}
		}
		if !yield(a.capacity(OtherDatabases, a.pools.Snapshot().Limit)) {
			return
		}
		for _, database := range names {
			if !yield(a.waited(database, of[database])) {
				return
			}
		}
		if !yield(a.waited(OtherDatabases, &a.waits.other)) {
			return
		}
		if lag := a.Lag(); lag.Known {
			yield(Metric{Name: a.prefix + lagName, Help: "Messages that the consumer group is behind, over all partitions.", Value: lag.Value, ofAll: true})
		}
	}
}

func (a *Admission) capacity(database string, permits int64) Metric {
	return Metric{Name: a.prefix + capacityName, Help: "Permits that a database may have at once.", Database: database, Value: float64(permits)}
}

func (a *Admission) waited(database string, w *wait) Metric {
	return Metric{Name: a.prefix + waitName, Help: "Seconds that admitted work has waited for a permit.", Database: database, Histogram: w.histogram()}
}

// WriteMetrics writes the series in the text format of Prometheus.
func (a *Admission) WriteMetrics(w io.Writer) error {
	var b strings.Builder
	last := ""
	for m := range a.Metrics() {
		if m.Name != last {
			kind := "gauge"
			if m.Histogram != nil {
				kind = "histogram"
			}
			fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", m.Name, m.Help, m.Name, kind)
			last = m.Name
		}
		m.write(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (m *Metric) write(b *strings.Builder) {
	of := `database="` + escaped.Replace(m.Database) + `"`
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	switch h := m.Histogram; {
	case h != nil:
		for i, most := range waitBuckets {
			fmt.Fprintf(b, "%s_bucket{%s,le=\"%s\"} %d\n", m.Name, of, number(most), h.Within[i])
		}
		fmt.Fprintf(b, "%s_bucket{%s,le=\"+Inf\"} %d\n%s_sum{%s} %s\n%s_count{%s} %d\n", m.Name, of, h.Count, m.Name, of, number(h.Sum), m.Name, of, h.Count)
	case m.ofAll:
		fmt.Fprintf(b, "%s %s\n", m.Name, number(m.Value))
	default:
		fmt.Fprintf(b, "%s{%s} %s\n", m.Name, of, number(m.Value))
	}
}

var escaped = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
