package config

import _ "time/tzdata" // so that limits by the calendar know time zones where the machine has none
