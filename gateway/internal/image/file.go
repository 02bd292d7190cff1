package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"path"
	"strings"
	"time"
)

// config is what a container is started with, as engines read it.
type config struct {
	User         string              `json:",omitempty"`
	ExposedPorts map[string]struct{} `json:",omitempty"`
	Entrypoint   []string            `json:",omitempty"`
	Cmd          []string            `json:",omitempty"`
	Healthcheck  *healthcheck        `json:",omitempty"`
	Labels       map[string]string   `json:",omitempty"`
}

type healthcheck struct {
	Test              []string
	Interval, Timeout time.Duration `json:",omitempty"`
}

// copied is a file of the context, and where it is in the image.
type copied struct{ from, to string }

// plan is what a container file says.
type plan struct {
	config config
	copies []copied
}

// parse reads a container file. It tells the first fault with its line.
func parse(name, text string) (*plan, error) {
	p := &plan{config: config{ExposedPorts: map[string]struct{}{}, Labels: map[string]string{}}}
	started := false
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		word, rest, _ := strings.Cut(line, " ")
		rest = strings.TrimSpace(rest)
		err := errors.New("the first instruction must be FROM scratch")
		switch {
		case !started && word == "FROM" && rest == "scratch":
			started, err = true, nil
		case strings.HasSuffix(rest, "\\"):
			err = errors.New("write the instruction on one line")
		case strings.ContainsAny(rest, "$`"):
			err = errors.New("variables are not known here")
		case started:
			err = p.instruction(word, rest)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %s: %w", name, i+1, word, err)
		}
	}
	if p.config.Entrypoint == nil {
		return nil, fmt.Errorf("%s: there is no ENTRYPOINT", name)
	}
	return p, nil
}

// instruction carries out one line.
func (p *plan) instruction(word, rest string) (err error) {
	switch fields := strings.Fields(rest); word {
	case "COPY":
		if len(fields) != 2 || strings.HasPrefix(rest, "-") || strings.ContainsAny(rest, `*?["`) || !path.IsAbs(fields[1]) || strings.HasSuffix(fields[1], "/") {
			return errors.New("want one file and its path in the image, as in COPY bin/weir /weir")
		}
		p.copies = append(p.copies, copied{fields[0], path.Clean(fields[1])})
	case "LABEL":
		for _, f := range fields {
			key, value, ok := strings.Cut(f, "=")
			if !ok || strings.ContainsAny(f, `"'`) {
				return fmt.Errorf("%s: want KEY=VALUE without blanks and quotes", f)
			}
			p.config.Labels[key] = value
		}
	case "USER":
		p.config.User = rest
	case "EXPOSE":
		for _, port := range fields {
			if !strings.Contains(port, "/") {
				port += "/tcp"
			}
			p.config.ExposedPorts[port] = struct{}{}
		}
	case "HEALTHCHECK":
		return p.healthcheck(rest)
	case "ENTRYPOINT":
		p.config.Entrypoint, err = command(rest)
	case "CMD":
		p.config.Cmd, err = command(rest)
	default:
		return errors.New("this instruction is not known here")
	}
	return err
}

// healthcheck reads [--interval=TIME] [--timeout=TIME] CMD ["program", ...].
func (p *plan) healthcheck(rest string) error {
	options, program, ok := strings.Cut(rest, "CMD ")
	if !ok {
		return errors.New(`want CMD ["program", "argument"]`)
	}
	var h healthcheck
	flags := flag.NewFlagSet("HEALTHCHECK", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.DurationVar(&h.Interval, "interval", 0, "")
	flags.DurationVar(&h.Timeout, "timeout", 0, "")
	if err := flags.Parse(strings.Fields(options)); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%s is not an option", flags.Arg(0))
	}
	args, err := command(program)
	h.Test = append([]string{"CMD"}, args...)
	p.config.Healthcheck = &h
	return err
}

// command reads a program and its arguments as JSON: the image has no shell to read them otherwise.
func command(text string) ([]string, error) {
	var args []string
	if err := json.Unmarshal([]byte(text), &args); err != nil || len(args) == 0 {
		return nil, errors.New(`the image has no shell: want ["program", "argument"]`)
	}
	return args, nil
}
