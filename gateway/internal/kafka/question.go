package kafka

import (
	"encoding/binary"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// question is a request of the gateway itself on a client's connection, with its answer.
type question struct {
	answer kmsg.Response
	share  *share // of the memory for answers, while the answer is in use
}

// ask sends a question of the gateway on the connection of a client, and so with its rights, and returns the answer. The question takes the
// place of a request of the client: other has the fields of that request, and b is everything after the size of its frame. Meanwhile no
// other request of the client is sent.
func (r *relay) ask(req *request, b []byte, other, q kmsg.Request) (kmsg.Response, error) {
	r.freeAnswers() // answers to earlier questions
	asked, err := r.sendQuestions(req, b, other, []kmsg.Request{q})
	if err != nil {
		return nil, err
	}
	return r.awaitAnswer(asked[0], q.Key())
}

// askAll is ask for several questions. It sends all of them before it waits for the first answer. The memory of an answer is held only
// during hear, because the next answer may need it.
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
		q.share.free()
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

// awaitAnswer waits for the answer to a question of the gateway. The broker's time begins when all earlier requests have been answered,
// because a request of the client may take minutes.
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
				r.logEnd(endErrorf("the broker has not answered the gateway's %s within %v", kmsg.NameForKey(key), saidWithin))
				r.close()
			})
			defer late.Stop()
		}
		r.moved.Wait()
	}
	return q.answer, nil
}

// reply sends the gateway's own answer to a request.
func (r *relay) reply(req *request, resp kmsg.Response) error {
	header := binary.BigEndian.AppendUint32(nil, uint32(req.correlation))
	if resp.IsFlexible() {
		header = append(header, 0) // no tags
	}
	own := encode(header, resp)
	r.countAnswer(req, len(own))
	p := pending{request: *req, own: own}
	if len(own) > buffer {
		r.freeAnswers()
		var err error
		if p.share, err = r.acquire(&r.server.memory.answers, len(own)); err != nil {
			return err
		}
	}
	r.freeHeld() // of the request, because its client may read the answer slowly
	if err := r.expect(p); err != nil {
		p.share.free()
		return err
	}
	return r.ownAnswers()
}
