// Package policy turns a policy written as data into gates on live traffic.
package policy
