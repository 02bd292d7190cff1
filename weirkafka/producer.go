package weirkafka

import (
	"context"
	"errors"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weir-go/weir"
)

// Producer asks a gate before each record, and holds the permit until the result of the record is known. It is
// safe for concurrent use once its fields are set.
//
// A permit is held for as long as the client holds the record. So when a cancelled context, [kgo.Client.Close]
// or [kgo.RecordDeliveryTimeout] ends the record, the permit ends, too. By default franz-go does not give up a
// record that was sent and has no answer, because the record may still be written. Such a record keeps its
// permit until a broker answers or the client is closed. With [kgo.AllowIdempotentProduceCancellation], its
// context and the time-out end it, too.
//
// Let the client buffer more records than the gate admits (kgo.MaxBufferedRecords, by default 10,000). Then
// records wait in the gate: in order, and for a bounded time.
type Producer struct {
	// Client sends the records. The Producer never closes it. Required.
	Client *kgo.Client
	// Gate decides about each record. nil admits all records.
	Gate weir.Gate
	// Work describes a record to the gate. nil means that Op is the topic.
	Work func(*kgo.Record) weir.Work
	// Classify turns the error of a record into an outcome. nil means [Classify].
	Classify func(error) weir.Outcome
}

// Produce admits the record and passes it to Produce of the client. It waits for a slot no longer than the gate
// and the context allow. The permit ends when the record's result is known, just before promise is called.
// promise may be nil.
//
// The error comes from the gate, and is usually a [*weir.Rejection]. In that case nothing was produced, and
// promise is not called. If the error is nil, promise is called exactly once.
//
// A promise must not call Produce. franz-go calls one promise after the other, so Produce would wait for slots
// that only later promises give back.
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

var errNoClient = errors.New("weirkafka: producer: Client is not set; set the client that sends the records")

// ProduceSync is Produce for one record, and waits for its result. The error is that of the gate or of the
// record.
func (p *Producer) ProduceSync(ctx context.Context, r *kgo.Record) error {
	done := make(chan error, 1)
	if err := p.Produce(ctx, r, func(_ *kgo.Record, err error) { done <- err }); err != nil {
		return err
	}
	return <-done
}

// Publish sends a record under a permit that the caller has. It is for work whose result comes from the
// consumer of the record. If the record fails, Publish ends the permit with the outcome of the error. If the
// record is acknowledged, the caller keeps the permit, and calls Done when the result arrives, or when it will
// not come. So store the permit before Publish: the result may arrive before promise is called.
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

// flight is a record in flight. It is reused with its method value, so that a record allocates nothing.
type flight struct {
	producer *Producer
	permit   weir.Permit
	promise  func(*kgo.Record, error)
	keep     bool // an acknowledgement does not end the permit
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
// franz-go retries after codes that may go away, so it reports such a code only after its last attempt.
//
// Missing replicas are Overload, because the usual cause is followers that cannot keep up. A leader that moves
// (5, 6) is Failed: it says nothing about the capacity of the cluster. A record that is refused for its content
// would be refused on an idle cluster, too, so that is Failed.
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
