package quotas_test

import (
	"fmt"

	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// A rule is known by what it matches.
func Example() {
	r := policy.QuotaRuleSpec{Rule: quota.Rule{User: "alice", Client: "*"}, QuotaLimitSpec: policy.QuotaLimitSpec{Limits: []string{"10/s burst 20", "1000/h"}}}
	fmt.Println(r.Pattern().String(), "gets", quotas.Terms(&r))
	// Output: user=alice,client=* gets 10/s burst 20, 1000/h
}
