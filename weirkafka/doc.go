// Package weirkafka reads how far a consumer group of Kafka is behind, so that its producers can slow down in
// time. [Admission] is a gate that follows it. A [Producer] asks a gate before each record.
//
//	lag, err := weirkafka.NewLag(weirkafka.LagConfig{
//		Brokers: []string{"kafka.internal:9092"}, Group: "indexer", Topics: []string{"documents"},
//	})
//	if err != nil {
//		return err
//	}
//	defer lag.Close()
//	poller, err := signal.NewPoller(signal.Config{Watches: []signal.Watch{{Signal: lag, Interval: 5 * time.Second}}})
//
// The poller is the Signals of a limiter whose controller is a control.LagMap or a control.Drain.
// [Lag.Topics] returns a signal for each topic instead.
//
// # What is measured
//
// Lag is counted in messages, for every partition of the topics: the end of the log less the group's committed
// offset. Neither a member nor a commit is needed: the group may be stopped, new, or of either protocol. A
// commit below the start of the log counts as the start, because messages that retention has deleted cannot be
// consumed. A commit beyond the end counts as the end.
//
// Compacted topics and transactions leave gaps in the offsets, so the lag of such a topic is above the real
// number of messages. Kafka's own tool counts in the same way.
//
// # Unknown is not zero
//
// If the lag of one partition is unknown, the reading is an error, never a smaller sum. Then the poller's rule
// applies: hold the last value for a while, then use a safe one.
//
// # Rights
//
// The user needs the ACLs DESCRIBE on the group and DESCRIBE on each topic. This package never joins a group,
// commits, or creates a topic.
//
// # Quotas of the cluster
//
// [RetryQuota] repeats calls of an admin client that a quota refused. [Throttles] counts how long brokers hold
// the connections of a client.
package weirkafka
