-- One decision on all windows of one key, or tokens given back to them. KEYS[1]
-- holds the buckets; ARGV[1] is what wire.go packs.
--
-- The value is the byte 1 and, for each window, its kind and two doubles: the
-- tokens, and when they were counted, in microseconds by the server's clock or, of
-- a calendar, as the number of the period. A key that is not there is full.
--
-- A refusal writes nothing, unless the clock has stepped back, or what has come back
-- was counted a second ago or longer: so a rate that changes holds for a second of
-- the past at most, and a flood of refusals costs each key one write a second.
--
-- The arithmetic is that of package quota, step by step, so that both decide alike.
local mode, debt, cost, most, lease, now, count, kind, burst, rate = struct.unpack('<BBddddBBdd', ARGV[1])
local stopped = now ~= 0 -- by a test: its buckets must not expire by the real clock
if not stopped then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end

local value, known = redis.call('GET', KEYS[1]), 0
local foreign = 'ERR weir: this value is not a bucket that this version knows'

-- What most decisions are, one window with a rate, without the tables of what
-- follows for all: three fifths of the time on the server.
if count == 1 and kind == 0 and mode ~= 3 and lease == 0 and (not value or #value == 18) then
  local version, was, tokens, last = 1, 0, burst, now
  if value then version, was, tokens, last = struct.unpack('<BBdd', value) end
  if version == 1 and was == 0 then
    local passed = now - last
    if passed > 0 then
      tokens = tokens + rate * (math.floor(passed / 1000000) + passed % 1000000 * 1000 / 1e9)
    end
    if tokens > burst then tokens = burst end
    if tokens ~= tokens then return redis.error_reply(foreign) end -- not a number
    local lack = (debt == 1 and 0 or cost) - tokens
    local ok = mode == 1 or mode == 4 or (debt == 1 or cost <= burst) and lack <= 1e-9 * (1 + rate) + 1e-12 * burst
    local charge = ok and mode ~= 2 and cost or 0
    local reply = struct.pack('<Bddd', ok and 1 or 0, charge, now, tokens)
    if mode == 2 or not ok and passed >= 0 and passed < 1000000 then return reply end

    tokens = tokens - charge
    if tokens > burst then tokens = burst elseif tokens < -1e15 then tokens = -1e15 end
    local ms = math.ceil(2 * (burst - tokens) / rate * 1e6 / 1000) + 1
    value = struct.pack('<BBdd', 1, 0, tokens, now)
    if stopped or ms > 1e14 then
      redis.call('SET', KEYS[1], value)
    else
      redis.call('SET', KEYS[1], value, 'PX', ms)
    end
    return reply
  end
end

if value then
  known = (#value - 1) / 17
  if string.byte(value) ~= 1 or known % 1 ~= 0 then
    return redis.error_reply(foreign)
  end
end

-- Bring every window up to now, and see how long each makes the work wait.
local window, wait, touch, at = {}, 0, false, 36
for i = 1, count do
  local w = {}
  kind, w.burst, at = struct.unpack('<Bd', ARGV[1], at)
  w.kind, w.tokens = kind, w.burst
  if kind == 0 then
    w.here = now
    w.rate, at = struct.unpack('<d', ARGV[1], at)
  else
    -- Periods around now: the client knows the calendar, the server the time.
    local n, start, number, ends = 0
    w.longest, n, at = struct.unpack('<dH', ARGV[1], at)
    for _ = 1, n do
      start, number, at = struct.unpack('<dd', ARGV[1], at)
      if start > now then
        ends = ends or {}
        ends[#ends + 1] = start
      else
        w.here = number
      end
    end
    if not ends or not w.here then
      return redis.error_reply('ERR weir: the clocks of client and server are periods of the calendar apart')
    end
    w.ends = ends
  end

  if i <= known then
    local was, last
    was, w.tokens, last = struct.unpack('<Bdd', value, 17 * i - 15)
    -- A clock that has stepped back credits nothing, and counts on from where it is.
    touch = touch or w.here < last or w.here - last >= (kind == 0 and 1000000 or .25)
    if was == kind and w.here > last then
      local passed = w.here - last
      if kind == 0 then
        w.tokens = w.tokens + w.rate * (math.floor(passed / 1000000) + passed % 1000000 * 1000 / 1e9)
      else
        w.tokens = w.tokens + w.burst * math.ceil(passed)
      end
    end
    if w.tokens > w.burst then w.tokens = w.burst end
    if w.tokens ~= w.tokens then return redis.error_reply(foreign) end
  end

  local lack = (debt == 1 and 0 or cost) - w.tokens
  if debt == 0 and cost > w.burst then
    wait = math.huge
  elseif lack > 1e-9 * (1 + (w.rate or 0)) + 1e-12 * w.burst then
    local ns
    if kind == 0 then
      ns = math.ceil(lack / w.rate * 1e9 - 1e-3)
    else
      local last = w.ends[math.ceil(lack / w.burst - 1e-9)]
      ns = last and (last - now) * 1000 or math.huge
    end
    if ns > wait then wait = ns end
  end
  window[i] = w
end

-- mode: 0 strict, 1 permissive, 2 dry run, 3 reserve, 4 give.
local ok, charge = wait == 0, 0
if mode == 3 then
  if wait < 1e6 then wait = 0 end
  ok = wait <= most and wait < 2 ^ 62
elseif mode == 1 or mode == 4 then
  ok = true
end
if ok and mode ~= 2 then
  charge = cost
  if lease > 0 then -- and half of what every window can spare besides
    for i = 1, count do lease = math.min(lease, math.floor((window[i].tokens - cost) / 2)) end
    if lease > 0 then charge = cost + lease end
  end
end

local reply, out, full = {struct.pack('<Bdd', ok and 1 or 0, charge, now)}, {'\1'}, 0
for i = 1, count do
  local w = window[i]
  reply[i + 1] = struct.pack('<d', w.tokens)
  local tokens = math.min(math.max(w.tokens - charge, -1e15), w.burst)
  out[i + 1] = struct.pack('<Bdd', w.kind, tokens, w.here)
  local us = 0
  if w.kind == 0 then
    us = 2 * (w.burst - tokens) / w.rate * 1e6
  elseif tokens < w.burst then
    us = w.ends[1] - now + (math.ceil((w.burst - tokens) / w.burst) - 1) * w.longest
  end
  if us > full then full = us end
end

if mode ~= 2 and (ok or touch) then
  -- The key goes when its last window is full again, and no earlier: at half of its
  -- rate, so that a limit that is halved meanwhile forgives nothing.
  local ms = math.ceil(full / 1000) + 1
  if known > count then -- windows that somebody else still has
    out[count + 2] = string.sub(value, 17 * count + 2)
    local left = redis.call('PTTL', KEYS[1])
    if left < 0 then ms = math.huge elseif left > ms then ms = left end
  end
  if stopped or ms > 1e14 then
    redis.call('SET', KEYS[1], table.concat(out))
  else
    redis.call('SET', KEYS[1], table.concat(out), 'PX', ms)
  end
end
return table.concat(reply)
