package kafka

import (
	"encoding/binary"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// question is what the gateway asks on a client's connection, and the answer once there is one.
type question struct {
	answer kmsg.Response
	share  *share // of the memory for answers, as long as the answer is looked at
}

// ask lets the broker answer a question of the gateway's own, on the connection of a client and so with its rights. It comes in place of a request
// of the client's. The fields of that are other, and b is everything behind the size of its frame. Nothing else of the client is sent meanwhile.
func (r *relay) ask(req *request, b []byte, other, q kmsg.Request) (kmsg.Response, error) {
	r.heard() // what was asked before
	asked, err := r.sendQuestions(req, b, other, []kmsg.Request{q})
	if err != nil {
		return nil, err
	}
	return r.awaitAnswer(asked[0], q.Key())
}

// askAll is ask for several questions, all of which are sent before the first answer is waited for. What hear is told is held no longer than
// it takes: the next answer may need the memory.
func (r *relay) askAll(req *request, b []byte, other kmsg.Request, all []kmsg.Request, hear func(kmsg.Response)) error {
	asked, err := r.sendQuestions(req, b, other, all)
	if err != nil {
		return err
	}
	for i, q := range asked {
		a, err := r.awaitAnswer(q, all[i].Key())
		if err != nil {
			return err
		}
		hear(a)
		q.answer = nil
		q.share.leave()
	}
	return nil
}

// sendQuestions sends questions, without waiting for answers.
func (r *relay) sendQuestions(req *request, b []byte, other kmsg.Request, all []kmsg.Request) ([]*question, error) {
	asked := make([]*question, len(all))
	for i, q := range all {
		asked[i] = new(question)
		r.holds.questions = append(r.holds.questions, asked[i])
		p := pending{request: request{key: q.Key(), version: q.GetVersion(), correlation: req.correlation}, question: asked[i]}
		if err := r.send(p, likeRequest(b, other, q)); err != nil {
			return nil, err
		}
	}
	return asked, nil
}

// awaitAnswer waits for the answer to a question of the gateway's own. The broker's time for it begins when all that was asked before has
// been answered: a client may have asked for what takes minutes.
func (r *relay) awaitAnswer(q *question, key int16) (kmsg.Response, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var late *time.Timer
	for q.answer == nil {
		if r.closed {
			return nil, net.ErrClosed
		}
		if late == nil && r.state.pending[0].question == q {
			late = time.AfterFunc(saidWithin, func() {
				r.logEnd(endErrorf("the broker has not answered %s within %v", kmsg.NameForKey(key), saidWithin))
				r.close()
			})
			defer late.Stop()
		}
		r.moved.Wait()
	}
	return q.answer, nil
}

// reply answers a request here.
func (r *relay) reply(req *request, resp kmsg.Response) error {
	header := binary.BigEndian.AppendUint32(nil, uint32(req.correlation))
	if resp.IsFlexible() {
		header = append(header, 0) // no tags
	}
	own := encode(header, resp)
	r.countAnswer(req, len(own))
	p := pending{request: *req, own: own}
	if len(own) > buffer {
		r.heard()
		var err error
		if p.share, err = r.acquire(&r.server.memory.answers, len(own)); err != nil {
			return err
		}
	}
	r.freeHeld() // what is left of the request: its client may take its time to read
	if err := r.expect(p); err != nil {
		p.share.leave()
		return err
	}
	return r.ownAnswers()
}
