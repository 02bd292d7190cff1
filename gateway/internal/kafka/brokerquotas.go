package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/quota"
)

// BrokerQuota is a quota of the brokers themselves, for something that a gate of the gateway counts, too. Both hold.
type BrokerQuota struct {
	Key   string
	Value float64
	// Op sets the same quota here. If there cannot be one, Err says why, and Op is empty.
	Op  quotas.Op
	Err error

	entity []kmsg.DescribeClientQuotasResponseEntryEntity
}

// Entity says to whom the quota applies, in the words of kafka-configs.
func (b *BrokerQuota) Entity() string {
	var words []string
	for _, is := range b.entity {
		word := "default " + is.Type
		if is.Name != nil {
			word = fmt.Sprintf("%s %q", is.Type, *is.Name)
		}
		words = append(words, word)
	}
	slices.SortFunc(words, func(a, b string) int { return strings.Compare(b, a) }) // users first
	return strings.Join(words, ", ")
}

// gateOf are the gates of a cluster, by Kafka's names for their quotas.
func gateOf(q *config.KafkaQuotas) map[string]string {
	all := map[string]string{mutationRate: q.Mutations, produceRate: q.Produce, fetchRate: q.Fetch, connectionRate: q.Connections}
	maps.DeleteFunc(all, func(_, gate string) bool { return gate == "" })
	return all
}

// ReadBrokerQuotas asks a cluster for those quotas of its brokers that the gates of q count, too. Their order is always the same. Each
// broker counts bytes and connections for itself, so rates of these here are the brokers' times factor. A factor of 0 means the number of
// brokers. by is the factor used.
func ReadBrokerQuotas(ctx context.Context, client *kgo.Client, q *config.KafkaQuotas, factor float64) (all []BrokerQuota, by float64, err error) {
	if factor == 0 {
		nodes := kmsg.NewPtrMetadataRequest()
		nodes.Topics = []kmsg.MetadataRequestTopic{} // none; nil would be all
		resp, err := nodes.RequestWith(ctx, client)
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		if err != nil {
			return nil, 0, fmt.Errorf("the number of brokers is unknown: %w", err)
		}
		factor = float64(max(len(resp.Brokers), 1))
	}
	entries, err := describeAll(ctx, client)
	if err != nil {
		return nil, 0, err
	}
	gates, made := gateOf(q), Quotas{Samples: q.Samples, Window: time.Duration(q.Window)}
	for _, e := range entries {
		for _, v := range e.Values {
			if gates[v.Key] == "" {
				continue
			}
			b := BrokerQuota{Key: v.Key, Value: v.Value, entity: e.Entity}
			b.Op, b.Err = made.imported(&b, gates[v.Key], factor)
			all = append(all, b)
		}
	}
	slices.SortFunc(all, func(a, b BrokerQuota) int {
		if c := strings.Compare(entityOf(a.entity), entityOf(b.entity)); c != 0 {
			return c
		}
		return strings.Compare(a.Key, b.Key)
	})
	onlyFirst(all)
	return all, factor, nil
}

// onlyFirst keeps only the first of several quotas that would be the same rule here, such as those of two addresses in one /64.
func onlyFirst(all []BrokerQuota) {
	type rule struct {
		gate  string
		whose quota.Pattern
	}
	taken := map[rule]*BrokerQuota{}
	for i := range all {
		b := &all[i]
		if b.Err != nil {
			continue
		}
		r := rule{b.Op.Gate, b.Op.Set.Rule.Pattern()}
		if first := taken[r]; first != nil {
			b.Op, b.Err = quotas.Op{}, fmt.Errorf("the gateway counts %s and %s as one, and takes the quota of %s", b.Entity(), first.Entity(), first.Entity())
			continue
		}
		taken[r] = b
	}
}

// imported returns the operation that sets a broker's quota here.
func (q *Quotas) imported(b *BrokerQuota, gate string, factor float64) (op quotas.Op, err error) {
	var entity []kmsg.AlterClientQuotasRequestEntryEntity
	for _, is := range b.entity {
		entity = append(entity, kmsg.AlterClientQuotasRequestEntryEntity(is))
	}
	whose, err := whoseRule(entity)
	if err != nil {
		return op, err
	}
	value := b.Value
	if b.Key != mutationRate && value > 0 && value < unlimited { // the controller alone counts mutations
		value = math.Max(1, math.Round(value*factor)) // a whole number, as in Kafka
	}
	op.Gate = gate
	if op.Set, op.Asked, err = q.ruleOf(whose, b.Key, value); err != nil {
		return quotas.Op{}, err
	}
	return op, nil
}

// RemoveBrokerQuotas deletes quotas from the brokers of a cluster, except those with an Err. The error names the entities whose quotas were
// not deleted.
func RemoveBrokerQuotas(ctx context.Context, client *kgo.Client, all []BrokerQuota) error {
	req, at := kmsg.NewPtrAlterClientQuotasRequest(), map[string]int{}
	for i := range all {
		b := &all[i]
		if b.Err != nil {
			continue
		}
		id := entityOf(b.entity)
		n, ok := at[id]
		if !ok {
			n = len(req.Entries)
			at[id] = n
			e := kmsg.NewAlterClientQuotasRequestEntry()
			for _, is := range b.entity {
				e.Entity = append(e.Entity, kmsg.AlterClientQuotasRequestEntryEntity(is))
			}
			req.Entries = append(req.Entries, e)
		}
		op := kmsg.NewAlterClientQuotasRequestEntryOp()
		op.Key, op.Remove = b.Key, true
		req.Entries[n].Ops = append(req.Entries[n].Ops, op)
	}
	if len(req.Entries) == 0 {
		return nil
	}
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	var wrong []error
	for _, e := range resp.Entries {
		if err := kerr.ErrorForCode(e.ErrorCode); err != nil {
			if e.ErrorMessage != nil {
				err = fmt.Errorf("%w: %s", err, *e.ErrorMessage)
			}
			wrong = append(wrong, fmt.Errorf("%s: %w", entityOf(e.Entity), err))
		}
	}
	return errors.Join(wrong...)
}

// describeAll asks a cluster for the quotas of its brokers.
func describeAll(ctx context.Context, client *kgo.Client) ([]kmsg.DescribeClientQuotasResponseEntry, error) {
	resp, err := kmsg.NewPtrDescribeClientQuotasRequest().RequestWith(ctx, client)
	if err == nil {
		if err = kerr.ErrorForCode(resp.ErrorCode); err != nil && resp.ErrorMessage != nil {
			err = fmt.Errorf("%w: %s", err, *resp.ErrorMessage)
		}
	}
	if err != nil {
		return nil, err
	}
	return resp.Entries, nil
}

// overlap is the state of quotas of the brokers that count the same as gates here.
type overlap struct {
	quotas map[string]int // how many, by key; nil if no gate counts anything
	said   string         // the last line in the log
}

// look asks the cluster, as the gateway's own principal, whether its brokers have quotas for what a gate counts. It logs a line when that
// changes.
func (s *Server) look(ctx context.Context) {
	q := s.opts.Quotas()
	gates := q.gates()
	counts, first := map[string]int{}, ""
	for key := range gates {
		counts[key] = 0
	}
	if len(gates) > 0 {
		ctx, cancel := context.WithTimeout(ctx, askWithin)
		defer cancel()
		entries, err := describeAll(ctx, s.asks)
		if err != nil {
			if s.stopping.Err() == nil && s.overlapSays(nil, err.Error()) {
				s.log.Warn("cannot find out whether brokers have quotas that count the same as this gateway; such quotas would hold, too. The gateway's principal needs DESCRIBE_CONFIGS on the cluster", "error", err)
			}
			return
		}
		for _, e := range entries {
			for _, v := range e.Values {
				if gates[v.Key] == nil {
					continue
				}
				if counts[v.Key]++; first == "" {
					first = entityOf(e.Entity)
				}
			}
		}
	}
	var of []any
	for _, key := range slices.Sorted(maps.Keys(counts)) {
		if counts[key] > 0 {
			of = append(of, key, counts[key])
		}
	}
	switch changed := s.overlapSays(counts, fmt.Sprint(of...)); {
	case !changed:
	case len(of) > 0:
		s.log.Warn("brokers have quotas that count the same as this gateway; both hold, and the longer wait counts. To take these quotas over, run weir kafka import", append(of, "first", first)...)
	default:
		s.log.Info("brokers have no quotas that count the same as this gateway")
	}
}

// overlapSays keeps the counts, which are nil if they are unknown. It reports whether the line is new.
func (s *Server) overlapSays(counts map[string]int, said string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.overlap.said
	s.overlap = overlap{counts, said}
	return said != was
}
