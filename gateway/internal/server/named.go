package server

import (
	"bytes"
	"encoding/json"
	"net/http"

	"github.com/weir-go/weir"
)

// named is a ResponseWriter that adds class and tenant of the work to the document
// of a refusal, and the key of the bucket if a quota has refused. They are for trusted peers, which have said or may know them: to
// anybody else a tenant may be another's name, and a class a hint at what to
// pretend.
type named struct {
	http.ResponseWriter
	work *weir.Work
	key  string
}

// Unwrap leads http.ResponseController to the server's own writer.
func (n *named) Unwrap() http.ResponseWriter { return n.ResponseWriter }

// Write takes a document, which comes in one piece.
func (n *named) Write(document []byte) (int, error) {
	open, ok := bytes.CutSuffix(document, []byte("}\n"))
	if !ok {
		return n.ResponseWriter.Write(document)
	}
	who, err := json.Marshal(struct {
		Class  string `json:"class"`
		Tenant string `json:"tenant,omitempty"`
		Key    string `json:"key,omitempty"`
	}{n.work.Priority.String(), n.work.Tenant, n.key})
	if err != nil { // cannot be: strings
		return n.ResponseWriter.Write(document)
	}
	whole := append(append(bytes.Clone(open), ','), who[1:]...)
	if _, err := n.ResponseWriter.Write(append(whole, '\n')); err != nil {
		return 0, err
	}
	return len(document), nil
}
