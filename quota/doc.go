// Package quota is limits on what is used up: tokens come back with time, not when
// work is done. A quota is a bucket of tokens for each key, by rules about users,
// clients and whatever else a key is made of.
package quota
