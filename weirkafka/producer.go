package weirkafka

import (
	"context"
	"errors"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weir-go/weir"
)

// Producer asks a gate before each record, and holds the permit until the record's fate is known. It is
// safe for concurrent use once its fields are set.
//
// A permit is held for as long as the client holds the record. So cancelling, [kgo.Client.Close] and
// [kgo.RecordDeliveryTimeout] end it when they end the record. By default franz-go gives up no record
// that is on the wire without an answer, because it may be written yet. Such a record keeps its permit
// until a broker answers or the client is closed. With [kgo.AllowIdempotentProduceCancellation] its
// context and the time-out end it as well.
//
// Let the client buffer more records than the gate admits (kgo.MaxBufferedRecords, by default 10,000).
// Whoever waits then waits in the gate: in order, and for a bounded time.
type Producer struct {
	// Client produces. It stays the caller's. Required.
	Client *kgo.Client
	// Gate decides about each record. nil admits them all.
	Gate weir.Gate
	// Work describes a record to the gate. nil means that Op is the topic.
	Work func(*kgo.Record) weir.Work
	// Classify says what the error of a record is to the gate. nil means [Classify].
	Classify func(error) weir.Outcome
}

// Produce admits the record and hands it to the client, whose Produce it is otherwise. It waits for a
// slot no longer than the gate and the context allow. The permit ends with the record's own promise,
// just before promise is called. promise may be nil.
//
// The error is that of the gate, as a rule a [*weir.Rejection]. Then nothing was produced, and promise is
// not called. It is called exactly once if the error is nil.
//
// A promise must not call Produce. franz-go calls one promise after the other, so it would wait for
// slots that only later promises give back.
func (p *Producer) Produce(ctx context.Context, r *kgo.Record, promise func(*kgo.Record, error)) error {
	if p.Client == nil {
		return errNoClient
	}
	permit, err := p.admit(ctx, r)
	if err != nil {
		return err
	}
	p.Client.Produce(ctx, r, p.launch(permit, promise, false).land)
	return nil
}

func (p *Producer) admit(ctx context.Context, r *kgo.Record) (weir.Permit, error) {
	if p.Gate == nil {
		return weir.Permit{}, nil
	}
	w := weir.Work{Op: r.Topic}
	if p.Work != nil {
		w = p.Work(r)
	}
	return p.Gate.Admit(ctx, w)
}

var errNoClient = errors.New("weirkafka: producer: there is no Client; set the one that produces")

// ProduceSync is Produce for one record whose fate the caller waits for. The error is the gate's or the
// record's.
func (p *Producer) ProduceSync(ctx context.Context, r *kgo.Record) error {
	done := make(chan error, 1)
	if err := p.Produce(ctx, r, func(_ *kgo.Record, err error) { done <- err }); err != nil {
		return err
	}
	return <-done
}

// Publish hands over a record under a permit that the caller has. It is for results that come from
// elsewhere: from whoever consumes the record. A record that fails ends the permit, by its error. One
// that is acknowledged leaves it to the caller, who calls Done when the result is there, or will not
// come. So note the permit before Publish: the result may be faster than promise.
func (p *Producer) Publish(ctx context.Context, permit weir.Permit, r *kgo.Record, promise func(*kgo.Record, error)) {
	if p.Client == nil {
		permit.Cancel()
		if promise != nil {
			promise(r, errNoClient)
		}
		return
	}
	p.Client.Produce(ctx, r, p.launch(permit, promise, true).land)
}

// flight is a record on its way. It is used again, with its method value, so that none allocates.
type flight struct {
	producer *Producer
	permit   weir.Permit
	promise  func(*kgo.Record, error)
	keep     bool // the permit outlasts an acknowledgement
	land     func(*kgo.Record, error)
}

var flights sync.Pool

func (p *Producer) launch(permit weir.Permit, promise func(*kgo.Record, error), keep bool) *flight {
	f, ok := flights.Get().(*flight)
	if !ok {
		f = &flight{}
		f.land = f.landed
	}
	f.producer, f.permit, f.promise, f.keep = p, permit, promise, keep
	return f
}

// landed is the promise that the client calls, once.
func (f *flight) landed(r *kgo.Record, err error) {
	p, permit, promise, keep := f.producer, f.permit, f.promise, f.keep
	f.producer, f.permit, f.promise = nil, weir.Permit{}, nil
	flights.Put(f)
	switch {
	case err == nil && keep:
	case err == nil:
		permit.Done(weir.OK)
	case p.Classify != nil:
		permit.Done(p.Classify(err))
	default:
		permit.Done(Classify(err))
	}
	if promise != nil {
		promise(r, err)
	}
}

// Classify maps the error of a record to an Outcome. The first line that fits holds:
//
//	nil                                                         OK
//	kgo.ErrClientClosed, ErrAborting    this process's own doing  NoSample
//	kgo.ErrRecordTimeout, ErrRecordRetries, ErrMaxBuffered      Overload
//	    7  REQUEST_TIMED_OUT                                    Overload
//	   19  NOT_ENOUGH_REPLICAS                                  Overload
//	   20  NOT_ENOUGH_REPLICAS_AFTER_APPEND                     Overload
//	   89  THROTTLING_QUOTA_EXCEEDED                            Overload
//	any other code, such as 10 (MESSAGE_TOO_LARGE),
//	3 (UNKNOWN_TOPIC_OR_PARTITION), 29 (no right), 90 (fenced)  Failed
//	the record's context is cancelled                           Abandoned
//	it is past its deadline, or the network timed out           Overload
//	anything else                                               as weir.Classify
//
// franz-go retries codes that pass, so it reports one only after its last try.
//
// Replicas that are missing are Overload because followers that cannot keep up are the usual cause. A
// leader that moves (5, 6) is Failed: it says nothing about how much the cluster can take. A record that
// is refused for what it is would be refused on an idle cluster too.
func Classify(err error) weir.Outcome {
	var code *kerr.Error
	switch {
	case err == nil:
		return weir.OK
	case errors.Is(err, kgo.ErrClientClosed), errors.Is(err, kgo.ErrAborting):
		return weir.NoSample
	case errors.Is(err, kgo.ErrRecordTimeout), errors.Is(err, kgo.ErrRecordRetries), errors.Is(err, kgo.ErrMaxBuffered):
		return weir.Overload
	case errors.As(err, &code):
		return classifyCode(code.Code)
	}
	return weir.Classify(err)
}

func classifyCode(code int16) weir.Outcome {
	switch code {
	case kerr.RequestTimedOut.Code, kerr.NotEnoughReplicas.Code, kerr.NotEnoughReplicasAfterAppend.Code, kerr.ThrottlingQuotaExceeded.Code:
		return weir.Overload
	}
	return weir.Failed
}
