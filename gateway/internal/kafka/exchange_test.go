package kafka

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// sent is a request without the size of its frame.
func sent(client string, version int16, req kmsg.Request) []byte {
	req.SetVersion(version)
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID(client)).AppendRequest(nil, req, 7)[4:]
}

// The acks of every version of Produce are found after the client id and the transactional id, however long these are.
func TestReadProduce(t *testing.T) {
	for version := int16(0); version <= offered[keyProduce].max; version++ {
		for _, acks := range []int16{0, 1, -1} {
			for _, id := range []string{"", "txn", strings.Repeat("t", 30_000)} {
				req := kmsg.NewPtrProduceRequest()
				req.Acks = acks
				if version >= 3 && id != "" {
					req.TransactionID = &id
				}
				b := sent("app", version, req)
				r, more, err := readRequest(b, len(b))
				if err != nil || more || r.silent != (acks == 0) || r.client != "app" || r.correlation != 7 || r.version != version {
					t.Errorf("version %d, acks %d: %+v, %v, %v", version, acks, r, more, err)
				}
				for n := range min(len(b), 200) { // as it comes in
					if r, more, err := readRequest(b[:n], len(b)); err != nil || !more && r.silent != (acks == 0) {
						t.Fatalf("version %d, the first %d bytes: %+v, %v", version, n, r, err)
					}
				}
			}
		}
	}
}

// From version 3 on, ApiVersions names the client's software. The broker reports a faulty request.
func TestReadSoftware(t *testing.T) {
	for version := range int16(lastApiVersions + 1) {
		req := kmsg.NewPtrApiVersionsRequest()
		req.ClientSoftwareName, req.ClientSoftwareVersion = "librdkafka", "2.0.2"
		b, want := sent("app", version, req), ""
		if version >= apiVersionsNames {
			want = "librdkafka 2.0.2"
		}
		if r, more, err := readRequest(b, len(b)); r.software != want || more || err != nil {
			t.Errorf("version %d: %q, %v, %v", version, r.software, more, err)
		}
		cut := b[:len(b)-2]
		if r, more, err := readRequest(cut, len(cut)); (err == nil) != (want != "") || more || r.software != "" {
			t.Errorf("version %d, cut: %+v, %v, %v", version, r, more, err) // below version 3 that is within the client id
		}
	}
}

func TestReadRequestRefuses(t *testing.T) {
	for _, c := range []struct {
		key, version int16
		want         string
	}{
		{1, 16, "version 16 of Fetch is not offered; versions 4 to 15 are"}, {1, 3, "version 3 of Fetch"}, {17, 0, "version 0 of SASLHandshake"},
		{27, 0, "API 27 is not offered"}, {86, 0, "API 86"}, {-1, 0, "API -1"}, {999, 0, "API 999"}, {55, 2, "version 2 of DescribeQuorum"},
	} {
		b := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, uint16(c.key)), uint16(c.version))
		b = append(b, 0, 0, 0, 7, 0xff, 0xff)
		if _, _, err := readRequest(b, len(b)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("API %d, version %d: %v", c.key, c.version, err)
		}
	}
	whole := sent("app", 3, kmsg.NewPtrProduceRequest())
	cut := whole[:12] // in the client id
	if _, _, err := readRequest(cut, len(cut)); err == nil {
		t.Error("a header that ends in its client id")
	}
}

// Every offered API is known, and is offered up to its newest version. The exceptions are answers that name nodes, and versions newer than
// Kafka 4.2.
func TestOffered(t *testing.T) {
	ends := map[int16]int16{1: 15, keyApiVersions: lastApiVersions, 28: 5, 35: 4, 42: 2, 55: 1, 88: 0, 89: 0}
	for key, of := range offered {
		req := kmsg.RequestForKey(key)
		if req == nil {
			t.Errorf("nobody knows API %d", key)
			continue
		}
		want, ok := ends[key]
		if !ok {
			want = req.MaxVersion()
		}
		if of.max != want || of.min > of.max {
			t.Errorf("%s is offered from %d to %d, not to %d", kmsg.NameForKey(key), of.min, of.max, want)
		}
		r := request{key: key}
		if resp := r.response(); resp != nil && resp.Key() != key {
			t.Errorf("an answer to %s is decoded as one to %s", kmsg.NameForKey(key), kmsg.NameForKey(resp.Key()))
		}
	}
	for key := range int16(kmsg.MaxKey + 1) {
		name := kmsg.NameForKey(key)
		if _, ok := offered[key]; ok && slices.Contains([]string{"LeaderAndISR", "StopReplica", "UpdateMetadata", "ControlledShutdown", "WriteTxnMarkers", "Vote", "BeginQuorumEpoch", "EndQuorumEpoch", "AlterPartition", "FetchSnapshot", "BrokerRegistration", "BrokerHeartbeat", "AllocateProducerIDs", "UpdateRaftVoter"}, name) {
			t.Errorf("%s is offered, and it is between brokers", name)
		}
	}
}

// rewrite rewrites an answer as a relay does.
func (r *request) rewrite(b []byte, to advertise) ([]byte, error) {
	resp, body, err := r.decode(b)
	if err != nil {
		return nil, err
	}
	replace(resp, to)
	return encode(b[:body], resp), nil
}

// Nodes have the gateway's addresses in each answer that names nodes. Nodes that clients cannot reach are left out.
func TestRewrite(t *testing.T) {
	to := func(id int32, host string, port int32) (string, int32, bool) { return "gateway", 9100 + id, id < 3 }
	metadata := kmsg.NewPtrMetadataResponse()
	describe := kmsg.NewPtrDescribeClusterResponse()
	produce := kmsg.NewPtrProduceResponse()
	share, acknowledge := kmsg.NewPtrShareFetchResponse(), kmsg.NewPtrShareAcknowledgeResponse()
	one, many := kmsg.NewPtrFindCoordinatorResponse(), kmsg.NewPtrFindCoordinatorResponse()
	one.NodeID, one.Host, one.Port = 5, "secret", 9092
	for _, id := range []int32{1, 5} {
		metadata.Brokers = append(metadata.Brokers, kmsg.MetadataResponseBroker{NodeID: id, Host: "secret", Port: 9092})
		describe.Brokers = append(describe.Brokers, kmsg.DescribeClusterResponseBroker{NodeID: id, Host: "secret", Port: 9092})
		produce.Brokers = append(produce.Brokers, kmsg.ProduceResponseBroker{NodeID: id, Host: "secret", Port: 9092})
		share.NodeEndpoints = append(share.NodeEndpoints, kmsg.ShareFetchResponseNodeEndpoint{NodeID: id, Host: "secret", Port: 9092})
		acknowledge.NodeEndpoints = append(acknowledge.NodeEndpoints, kmsg.ShareAcknowledgeResponseNodeEndpoint{NodeID: id, Host: "secret", Port: 9092})
		many.Coordinators = append(many.Coordinators, kmsg.FindCoordinatorResponseCoordinator{Key: "group", NodeID: id, Host: "secret", Port: 9092})
	}
	for _, resp := range []kmsg.Response{metadata, describe, produce, share, acknowledge, one, many} {
		of := offered[resp.Key()]
		for version := of.min; version <= of.max; version++ {
			r := request{key: resp.Key(), version: version}
			if resp == many && version < 4 || resp == one && version >= 4 || resp == produce && version < produceNamesNodes {
				continue // a broker has no such answer
			}
			resp.SetVersion(version)
			answer := []byte{0, 0, 0, 7}
			if resp.IsFlexible() {
				answer = append(answer, 0)
			}
			answer = resp.AppendTo(answer)
			if !r.decoded() {
				if strings.Contains(string(answer), "secret") {
					t.Errorf("%s %d is not rewritten", kmsg.NameForKey(r.key), version)
				}
				continue
			}
			got, err := r.rewrite(answer, to)
			if err != nil {
				t.Errorf("%s %d: %v", kmsg.NameForKey(r.key), version, err)
				continue
			}
			if int(binary.BigEndian.Uint32(got)) != len(got)-4 || strings.Contains(string(got), "secret") || resp != one && strings.Count(string(got), "gateway") != 1 {
				t.Errorf("%s %d: %q", kmsg.NameForKey(r.key), version, got)
			}
		}
	}
}

// ApiVersions offers the APIs that the gateway offers, in versions that both have. SaslHandshake 0 alone is named without being served.
func TestRewriteApiVersions(t *testing.T) {
	resp := kmsg.NewPtrApiVersionsResponse()
	for _, k := range [][3]int16{{0, 0, 13}, {1, 4, 18}, {17, 0, 1}, {27, 0, 1}, {55, 0, 2}, {3, 0, 12}, {500, 0, 0}, {18, 0, 5}, {19, 0, 5}, {20, 0, 0}} {
		resp.ApiKeys = append(resp.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: k[0], MinVersion: k[1], MaxVersion: k[2]})
	}
	resp.SetVersion(3)
	r := request{key: keyApiVersions, version: 3}
	got, err := r.rewrite(resp.AppendTo([]byte{0, 0, 0, 7}), nil)
	if err != nil {
		t.Fatal(err)
	}
	cut := kmsg.NewPtrApiVersionsResponse()
	cut.SetVersion(3)
	if err := cut.ReadFrom(got[8:]); err != nil {
		t.Fatal(err)
	}
	var all [][3]int16
	for _, k := range cut.ApiKeys {
		all = append(all, [3]int16{k.ApiKey, k.MinVersion, k.MaxVersion})
	}
	if want := [][3]int16{{0, 0, 13}, {1, 4, 15}, {17, 0, 1}, {55, 0, 1}, {3, 0, 12}, {18, 0, 4}, {19, 2, 5}}; !slices.Equal(all, want) {
		t.Errorf("%v, not %v", all, want)
	}
}
