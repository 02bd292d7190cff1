package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// costs prints what a decision costs on the server alone, as the server tells it,
// and what a key takes of its memory.
func costs(addr string, subjects []subject) error {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	fmt.Println("\n| subject | script, let through | script, refused | memory of a key |")
	fmt.Println("| --- | --- | --- | --- |")
	for _, s := range subjects[:2] {
		open, err := scriptTime(client, s, load{name: "open", keys: 1000, rate: 1_000_000, burst: 1_000_000})
		if err != nil {
			return err
		}
		shut, err := scriptTime(client, s, load{name: "shut", keys: 1, rate: 1, burst: 1})
		if err != nil {
			return err
		}
		bytes, err := keySize(client, s)
		if err != nil {
			return err
		}
		fmt.Printf("| %s | %.1f µs | %.1f µs | %.0f B |\n", s.name, open, shut, bytes)
	}
	return nil
}

// scriptTime returns the mean time of a script in the best of several runs, in
// microseconds: whatever else the machine does only adds to it.
func scriptTime(client *redis.Client, s subject, l load) (best float64, err error) {
	ctx := context.Background()
	for range 10 {
		if err := client.ConfigResetStat(ctx).Err(); err != nil {
			return 0, err
		}
		for i := range 2000 {
			if _, err := s.take(ctx, l.name+strconv.Itoa(i%l.keys), l); err != nil {
				return 0, err
			}
		}
		us, err := field(client, "commandstats", "cmdstat_evalsha", "usec_per_call=")
		if err != nil {
			return 0, err
		}
		if best == 0 || us < best {
			best = us
		}
	}
	return best, nil
}

// keySize returns by how many bytes a key makes the server larger. Its name has 16
// bytes.
func keySize(client *redis.Client, s subject) (float64, error) {
	const keys = 5000 // in less than the second after which the first ones expire
	ctx := context.Background()
	if err := client.FlushAll(ctx).Err(); err != nil {
		return 0, err
	}
	before, err := field(client, "memory", "used_memory:", "used_memory:")
	if err != nil {
		return 0, err
	}
	for i := range keys {
		if _, err := s.take(ctx, fmt.Sprintf("%016d", i), load{rate: 1, burst: 1000}); err != nil {
			return 0, err
		}
	}
	after, err := field(client, "memory", "used_memory:", "used_memory:")
	return (after - before) / keys, err
}

// field returns the number after a word in a line of INFO.
func field(client *redis.Client, section, line, word string) (float64, error) {
	info, err := client.Info(context.Background(), section).Result()
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(info) {
		if !strings.HasPrefix(l, line) {
			continue
		}
		_, rest, _ := strings.Cut(l, word)
		rest, _, _ = strings.Cut(rest, ",")
		return strconv.ParseFloat(strings.TrimSpace(rest), 64)
	}
	return 0, fmt.Errorf("INFO %s has no %s", section, line)
}
