package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/accesslog"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/server"
	"github.com/weir-go/weir/policy"
)

// runOptions are the settings of weir run.
type runOptions struct {
	File       string // empty: Upstream
	Upstream   string
	Kafka      []string
	Listen     string
	Admin      string
	Limit      int64
	LimitSet   bool
	LimitAuto  bool
	Timeout    time.Duration
	TimeoutSet bool
	Rate       rateOptions
	Identity   policy.IdentitySpec // tenant, user, priority and trusted
	LogLevel   string
	AccessLog  string
	Version    string
	LogTo      *os.File
	Signals    <-chan os.Signal
	Begun      func() // called before Signals are read, and may be nil
}

// NewRunCommand returns weir run.
func NewRunCommand(version string) *cobra.Command {
	o := runOptions{Version: version}
	cmd := &cobra.Command{
		Use:   "run [FILE]",
		Short: "Run the gateway",
		Long: `Run guards servers. With a configuration file it guards all servers in the file.
Without one it guards the server at --upstream with default settings: the gateway
finds out how many requests at a time the server can carry.

With --kafka it stands before a cluster of Kafka instead. Clients bootstrap at
127.0.0.1:19092, and the node N is at 127.0.0.1:19100+N: no client needs the address of a
broker.

A quota admits so many requests a second (or minute, hour, day). It refuses the rest
with 429 and the time to come back. --rate 10/s sets the rate, and --burst 20 admits up
to 20 at once. --by header:X-User or --by address gives each user or address its own quota.

When not all requests can be served, the higher priority goes first. --priority says
where the priority of a request comes from: background, normal, high or critical.
Within a priority the gateway is fair between the users and tenants of --user and
--tenant. Each of the three is header:NAME or const:VALUE; --user and --tenant may also
be address. Headers are believed from --trusted-proxies only. Other clients are told
apart by address.

  SIGHUP             reads the file again, and so does a change of it
  SIGTERM, SIGINT    stop: nothing that was read goes without an answer
  the same again     stop now, and cut off what is in progress

The exit code is 0 after a complete stop. It is 1 if requests had to be cut off or the
gateway could not start, and 2 if the command line is wrong.`,
		Example: "  weir run --upstream http://127.0.0.1:3000\n  weir run --upstream http://127.0.0.1:3000 --limit 20 --listen :8080\n  weir run --upstream http://127.0.0.1:3000 --tenant header:X-Tenant --priority header:X-Priority\n  weir run --upstream http://127.0.0.1:3000 --rate 10/s --burst 20 --by header:X-User\n  weir run --kafka 127.0.0.1:9092\n  weir run weir.yaml",
		Args:    needs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := emptyFlag(cmd); err != nil {
				return err
			}
			if len(args) == 1 {
				if o.File != "" {
					return usage("the file is given twice: %s and --config %s; leave one out", args[0], o.File)
				}
				o.File = args[0]
			}
			given := cmd.Flags().Changed
			o.LimitSet, o.TimeoutSet, o.Rate.BurstSet = given("limit"), given("timeout"), given("burst")
			return runUntilSignal(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.File, "config", "c", "", "configuration file (YAML); weir init writes one")
	flags.Var(onceFlag{&o.Upstream}, "upstream", "server to guard, for instance http://127.0.0.1:3000 (only without a FILE)")
	flags.StringSliceVar(&o.Kafka, "kafka", nil, "brokers of a cluster of Kafka to stand before, for instance 127.0.0.1:9092 (only without a FILE and without --upstream)")
	flags.StringVar(&o.Listen, "listen", "", "address to accept clients on (only without a FILE; default "+config.DefaultListen+")")
	flags.StringVar(&o.Admin, "admin", "", "address for metrics and health, or off (only without a FILE; default "+config.DefaultAdmin+")")
	flags.Var(limitFlag{&o.Limit, &o.LimitAuto}, "limit", "requests in progress at a time, or auto (only without a FILE; default auto: the gateway finds the number, and follows the server)")
	addDuration(flags, &o.Timeout, "timeout", 0, "how long clients wait for an answer, for instance 1s; what would come later is not begun (only without a FILE; default: unknown)")
	o.Rate.flags(cmd)
	o.identityFlags(cmd)
	flags.StringVar(&o.AccessLog, "access-log", "", "write a line for each request to stdout, stderr or a file (only without a FILE; default off)")
	flags.StringVar(&o.LogLevel, "log-level", "", "debug, info, warn or error (default: the file's, else info)")
	cmd.ValidArgsFunction = completeFiles("yaml", "yml", "json")
	completeFlag(cmd, "limit", "auto")
	completeFlag(cmd, "log-level", "debug", "info", "warn", "error")
	return cmd
}

// runUntilSignal is runGateway with the signals of the process.
func runUntilSignal(ctx context.Context, o runOptions) error {
	signals := make(chan os.Signal, 4)
	// Nothing is lost before the gateway serves. So until then a signal to stop ends the process, whatever it waits for.
	signal.Notify(signals, syscall.SIGHUP)
	o.Begun = func() { signal.Notify(signals, os.Interrupt, syscall.SIGTERM) }
	// They stay caught when the run is over. One that comes then must not change how the process ends.
	defer o.Begun()
	// Whoever reads the log may go: a write then fails, and does not end the process.
	signal.Ignore(syscall.SIGPIPE)
	o.LogTo, o.Signals = os.Stderr, signals
	return runGateway(ctx, o)
}

// lastLines is how long the log has to take its last lines.
const lastLines = time.Second

// runGateway runs until a signal or the context says stop. Nobody waits for the log: whoever reads it may have stopped.
func runGateway(ctx context.Context, o runOptions) error {
	level, text := new(slog.LevelVar), new(atomic.Bool)
	log := accesslog.NewWriter(o.LogTo, func(lines uint64) {
		newLogger(o.LogTo, text, level).Warn("lines of this log were lost; read it faster, or log less (log.level)", "lines", lines)
	})
	err := o.run(ctx, log, text, level)
	if !log.Close(lastLines) && err != nil {
		return &ExitError{Code: exitError} // to print the error would wait for the same reader
	}
	return err
}

// run is runGateway with a log whose format and level it sets.
func (o *runOptions) run(ctx context.Context, log io.Writer, text *atomic.Bool, level *slog.LevelVar) error {
	read, _ := os.Stat(o.File) // load says what is wrong with it
	cfg, err := o.load()
	if err != nil {
		return err
	}
	if err := setLevel(level, cfg); err != nil {
		return err
	}
	inherited, err := accept.Inherit()
	if err != nil {
		return err
	}
	text.Store(isText(o.LogTo, cfg.Log.Format))
	srvOpts := server.Options{Logger: newLogger(log, text, level), Version: o.Version, Inherited: inherited}
	// The standard library logs only about single connections.
	slog.SetLogLoggerLevel(slog.LevelDebug)
	slog.SetDefault(srvOpts.Logger)
	if o.File != "" {
		srvOpts.Watch, srvOpts.Read = o.File, read
		srvOpts.Load = o.load
		srvOpts.Applied = func(next *config.Config) {
			_ = setLevel(level, next) // checked by Load
			text.Store(isText(o.LogTo, next.Log.Format))
			warn(srvOpts.Logger, next)
		}
	}
	srv, err := server.New(cfg, srvOpts)
	if err != nil {
		return err
	}
	if o.Begun != nil {
		o.Begun()
	}
	o.announce(srvOpts.Logger, cfg)
	warn(srvOpts.Logger, cfg)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan struct{})
	defer close(ended)
	go o.handleSignals(ended, srv, stop)
	return srv.Run(ctx)
}

// announce logs what is about to run: the version, the file, the upstreams, and the mode and
// the limit of each gate.
func (o *runOptions) announce(log *slog.Logger, cfg *config.Config) {
	var ups, gates []string
	for _, name := range slices.Sorted(maps.Keys(cfg.Upstreams)) {
		ups = append(ups, name+" "+strings.Join(cfg.Upstreams[name].Targets, " "))
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Gates)) {
		g := cfg.Gates[name]
		gates = append(gates, fmt.Sprintf("%s %s %s", name, cmp.Or(g.Mode, policy.Enforce), mechanism(&g)))
	}
	log.Info("weir starts", "version", o.Version, "config", cmp.Or(o.File, "flags"),
		"upstreams", atMost(ups, mostAnnounced), "gates", atMost(gates, mostAnnounced))
}

// warn logs what is probably a mistake in a configuration that is in force, the first of many.
func warn(log *slog.Logger, cfg *config.Config) {
	left := mostAnnounced
	for _, n := range cfg.Notes() {
		switch {
		case !n.Warning:
			continue
		case left > 0:
			log.Warn("the configuration has what is probably a mistake", located(&n)...)
		case left == 0:
			log.Warn("the configuration has more that is probably a mistake; weir check lists all of it")
		}
		left--
	}
}

// located is a warning as it stands in the log. One about flags names them, and no place.
func located(n *config.Note) []any {
	if n.File != "" {
		return []any{"at", strings.TrimSuffix(n.At(), ": "), "setting", n.Path.String(), "warning", n.Text()}
	}
	setting := inFlags.Replace(n.Path.String())
	if flag, _, _ := strings.Cut(setting, "["); strings.HasPrefix(flag, "--") {
		setting = flag
	}
	return []any{"setting", setting, "warning", inFlags.Replace(n.Text())}
}

// inFlags says what warnings say about settings in the words of the command line.
var inFlags = strings.NewReplacer(
	"upstreams.upstream.targets[0]", "--upstream",
	"routes[0] (/) has a timeout of", "--timeout is", "routes[0].timeout", "--timeout",
	"by listeners[0]", "by --listen", "by admin;", "by --admin;", "admin.address", "--admin",
	"identity.tenant", "--tenant", "identity.user", "--user", "identity.priority", "--priority", "identity.trusted_proxies", "--trusted-proxies",
)

// mostAnnounced bounds each list in the line of the start.
const mostAnnounced = 20

// atMost joins a list, the end of a long one as a number.
func atMost(list []string, most int) string {
	if n := len(list) - most; n > 0 {
		list = append(list[:most:most], fmt.Sprintf("%d more", n))
	}
	return strings.Join(list, ", ")
}

// mechanism names what a gate does.
func mechanism(g *policy.GateSpec) string {
	switch l := g.Limit; {
	case g.Quota != nil:
		return "quota"
	case g.Shed != nil:
		return "shed"
	case l != nil && l.Controller == "" && l.Limit > 0:
		return fmt.Sprintf("limit %d", l.Limit)
	case l != nil:
		return "limit " + cmp.Or(l.Controller, "auto")
	}
	return "limit by key"
}

func setLevel(v *slog.LevelVar, cfg *config.Config) error {
	var level slog.Level
	name := cfg.Log.Level
	if name == "" {
		name = "info"
	}
	if err := level.UnmarshalText([]byte(name)); err != nil {
		return usage("log level %q is unknown; write debug, info, warn or error", name)
	}
	v.Set(level)
	return nil
}

// newLogger returns a logger of text or JSON, as text says at each line.
func newLogger(to io.Writer, text *atomic.Bool, level slog.Leveler) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	return slog.New(eitherFormat{text, slog.NewTextHandler(to, opts), slog.NewJSONHandler(to, opts)})
}

// isText reports whether a log is text. It is on a terminal, and JSON elsewhere, unless format is set.
func isText(to *os.File, format string) bool {
	if format == "auto" || format == "" {
		return isTerminal(to)
	}
	return format == "text"
}

// eitherFormat is a handler of two formats, because a reload may change which one holds.
type eitherFormat struct {
	text           *atomic.Bool
	asText, asJSON slog.Handler
}

func (f eitherFormat) now() slog.Handler {
	if f.text.Load() {
		return f.asText
	}
	return f.asJSON
}

// Enabled implements [slog.Handler].
func (f eitherFormat) Enabled(ctx context.Context, l slog.Level) bool { return f.now().Enabled(ctx, l) }

// Handle implements [slog.Handler].
func (f eitherFormat) Handle(ctx context.Context, r slog.Record) error { return f.now().Handle(ctx, r) }

// WithAttrs implements [slog.Handler].
func (f eitherFormat) WithAttrs(attrs []slog.Attr) slog.Handler {
	return eitherFormat{f.text, f.asText.WithAttrs(attrs), f.asJSON.WithAttrs(attrs)}
}

// WithGroup implements [slog.Handler].
func (f eitherFormat) WithGroup(name string) slog.Handler {
	return eitherFormat{f.text, f.asText.WithGroup(name), f.asJSON.WithGroup(name)}
}

// echo is how long a second signal to stop counts as the first one. A supervisor that
// signals a process and then its group sends two. So does a wrapper that passes Ctrl-C on.
const echo = 500 * time.Millisecond

// handleSignals reloads and stops the server as signals ask, until ended is closed. A reload may take its time,
// and signals to stop are heard meanwhile.
func (o *runOptions) handleSignals(ended <-chan struct{}, srv *server.Server, stop func()) {
	reload := make(chan struct{}, 1) // asked for since the last one began
	go func() {
		for {
			select {
			case <-ended:
				return
			case <-reload:
				_ = srv.Reload() // which logs its errors, and changes nothing once the server stops
			}
		}
	}()
	var stopped time.Time // by the first signal to stop
	for {
		var sig os.Signal
		select {
		case <-ended:
			return
		case sig = <-o.Signals:
		}
		switch {
		case sig == syscall.SIGHUP:
			select {
			case reload <- struct{}{}:
			default: // one is to come, and reads what there is then
			}
		case stopped.IsZero():
			stopped = time.Now()
			stop()
		case time.Since(stopped) >= echo:
			slog.Warn("stopping at once, because of a second signal", "signal", sig.String())
			srv.Abort()
		}
	}
}

// load returns the configuration that the command line asks for.
func (o *runOptions) load() (*config.Config, error) {
	cfg, err := o.read()
	if err == nil && o.LogLevel != "" {
		cfg.Log.Level = o.LogLevel
	}
	return cfg, err
}

func (o *runOptions) read() (*config.Config, error) {
	switch {
	case strings.Contains(o.File, "://"):
		return nil, usage("%s is a URL, not a file; write weir run --upstream %s", o.File, o.File)
	case o.File != "" && (o.Upstream != "" || o.Listen != "" || o.Admin != "" || o.LimitSet || o.TimeoutSet):
		return nil, usage("--upstream, --listen, --admin, --limit and --timeout are for running without a file; set them in %s", o.File)
	case o.File != "" && o.AccessLog != "":
		return nil, usage("--access-log is for running without a file; write access_log: {to: %s} in %s", o.AccessLog, o.File)
	case o.File != "" && o.Rate.given():
		return nil, usage("--rate, --burst and --by are for running without a file; write a gate with a quota in %s", o.File)
	case o.File != "" && o.identifies():
		return nil, usage("--tenant, --user, --priority and --trusted-proxies are for running without a file; set them under identity in %s", o.File)
	case o.File != "" && o.Kafka != nil:
		return nil, usage("--kafka is for running without a file; write kafka: {orders: {bootstrap: [%s], listen: {...}, nodes: {...}}} in %s", strings.Join(o.Kafka, ", "), o.File)
	case o.File != "":
		return loadConfig(o.File)
	case o.Kafka != nil:
		return o.withKafka()
	case o.Upstream == "":
		return nil, usage("what should be guarded? Write weir run --upstream http://127.0.0.1:3000, or weir run FILE (weir init FILE writes one); weir demo shows it at work")
	}
	return o.withoutFile()
}

// withKafka makes a configuration for clients of Kafka from flags.
func (o *runOptions) withKafka() (*config.Config, error) {
	if o.Upstream != "" || o.Listen != "" || o.LimitSet || o.TimeoutSet || o.AccessLog != "" || o.Rate.given() || o.identifies() {
		return nil, usage("--kafka goes with --admin and --log-level alone, because the other flags are about HTTP; write a file for both (weir init --full)")
	}
	cfg, err := config.ForKafka(o.Kafka...)
	if err != nil {
		return nil, &ExitError{Code: exitUsage, Err: fmt.Errorf("--kafka: %w", err)}
	}
	if o.Admin != "" {
		cfg.Admin.Address = o.Admin
	}
	return cfg, nil
}

// withoutFile makes a configuration from flags. Its error lists all faults of the flags.
func (o *runOptions) withoutFile() (*config.Config, error) {
	var wrong []error
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	if o.LimitSet && !o.LimitAuto && o.Limit < 1 {
		add("--limit %d admits nothing; it is how many requests may be in progress at a time, at least 1. Leave it out to let the gateway find it", o.Limit)
	}
	if o.TimeoutSet && o.Timeout == 0 {
		add("--timeout 0s says that nobody waits; it is how long clients wait for an answer, for instance 1s; leave it out if nobody knows")
	}
	if o.Timeout < 0 {
		add("--timeout %v is in the past; it is how long clients wait for an answer, for instance 1s; leave it out if nobody knows", o.Timeout)
	}
	if listen := cmp.Or(o.Listen, config.DefaultListen); listen == cmp.Or(o.Admin, config.DefaultAdmin) {
		add("clients and operators cannot both connect to %s; choose another port with --listen or --admin", listen)
	}
	cfg, err := config.ForUpstream(o.Upstream, o.Listen, max(o.Limit, 0))
	if err != nil {
		wrong = append(wrong, err)
	}
	rates, faults := o.Rate.spec(&o.Identity)
	wrong = append(wrong, faults...)
	if wrong = append(wrong, o.identityFaults()...); len(wrong) > 0 {
		return nil, &ExitError{Code: exitUsage, Err: errors.Join(wrong...)}
	}
	cfg.Identity = o.Identity
	guardBy(cfg, rates)
	if o.Admin != "" {
		cfg.Admin.Address = o.Admin
	}
	if o.AccessLog != "" {
		cfg.AccessLog.To = o.AccessLog
	}
	for i := range cfg.Routes {
		cfg.Routes[i].Timeout = policy.Duration(o.Timeout)
	}
	return cfg, nil
}

// identityFlags adds the flags that say who sends a request.
func (o *runOptions) identityFlags(cmd *cobra.Command) {
	id, flags := &o.Identity, cmd.Flags()
	flags.StringVar(&id.Tenant, "tenant", "", "where the tenant of a request comes from, for instance header:X-Tenant; tenants are served fairly (only without a FILE)")
	flags.StringVar(&id.User, "user", "", "where the user comes from, for instance header:X-User; users are served fairly, then the tenants of each (only without a FILE)")
	flags.StringVar(&id.Priority, "priority", "", "where the priority comes from, for instance header:X-Priority: background, normal, high or critical (only without a FILE)")
	flags.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "trusted" { // its name before
			name = "trusted-proxies"
		}
		return pflag.NormalizedName(name)
	})
	flags.StringSliceVar(&id.Trusted, "trusted-proxies", nil, "networks with headers that are believed without a file, for instance 10.0.0.0/8 (default 127.0.0.0/8,::1/128)")
}

// identifies reports whether one of these flags is given.
func (o *runOptions) identifies() bool {
	id := &o.Identity
	return id.Tenant != "" || id.User != "" || id.Priority != "" || id.Trusted != nil
}

// identityFaults returns all faults of these flags.
func (o *runOptions) identityFaults() []error {
	p, err := policy.Compile(policy.Spec{Identity: o.Identity}, policy.Options{})
	if err == nil {
		p.Close()
		return nil
	}
	var faults *policy.Faults
	if !errors.As(err, &faults) {
		return []error{err}
	}
	var wrong []error
	for _, f := range faults.List {
		flag := f.Path[len(f.Path)-1]
		if len(f.Path) > 1 {
			flag = f.Path[1]
		}
		if flag == "user" && o.Rate.By != "" && o.Identity.User == o.Rate.By {
			flag = "by"
		}
		wrong = append(wrong, fmt.Errorf("--%s: %s; %s", strings.ReplaceAll(flag, "_", "-"), f.Problem, f.Instead))
	}
	return wrong
}
