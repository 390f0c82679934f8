// SPDX-License-Identifier: BSD-2-Clause

package qpparams

import (
	"errors"
	"fmt"
	"os"
)

const configEnv = "DEVXLAB_CONFIG" // as in the tag of Flags.Config

// Flags are the command line flags that choose a file and override it. A
// command of github.com/alecthomas/kong embeds them. They are texts, so that a
// flag is read by the same rules as a file; nil is a flag that was not given.
type Flags struct {
	Config    *string `name:"config" env:"DEVXLAB_CONFIG" placeholder:"FILE" help:"INI file with a section [qp_params]; see \"devxlab qp params\"."`
	MaxQP     *string `name:"max-qp" placeholder:"N" help:"Queue pairs at once, 1 to 16777215; default 65535. Linux allows 262144 at most."`
	QPTimeout *string `name:"qp-timeout" aliases:"timeout" placeholder:"N" help:"Local ACK time-out of RC, 0 to 31: 4.096 µs · 2^n; default 14, 67 ms; 0 is none."`
	RetryCnt  *string `name:"retry-cnt" placeholder:"N" help:"Retries of RC after a time-out, 0 to 7; default 7."`
	RNRRetry  *string `name:"rnr-retry" placeholder:"N" help:"Retries of RC after receiver not ready, 0 to 7; default 7, for ever."`
}

// Kind is the kind of a Source.
type Kind string

// Kinds of Source. A flag goes before the file, and the file before the
// default.
const (
	FromDefault Kind = "default"
	FromFile    Kind = "file"
	FromFlag    Kind = "flag"
)

// Source is where a value comes from.
type Source struct {
	Kind Kind   `json:"kind"`
	At   string `json:"at,omitempty"` // lab.ini:4, or --max-qp; "" for a default
}

func (s Source) String() string {
	if s.At == "" {
		return string(s.Kind)
	}
	return string(s.Kind) + " " + s.At
}

// Resolve returns the values, and the source of each by its key. Errors are
// *Error, joined: all mistakes of the file and of the flags.
func (f Flags) Resolve() (Params, map[string]Source, error) {
	p := Default()
	var lines map[string]int
	var errs []error
	if f.Config != nil && *f.Config == "" {
		// An empty variable is no variable; kong does not tell them apart.
		if v, set := os.LookupEnv(configEnv); set && v == "" {
			f.Config = nil
		}
	}
	if f.Config != nil && *f.Config == "" {
		errs = append(errs, &Error{Flag: "--config", Reason: "names no file; leave it out for the defaults"})
	} else if f.Config != nil {
		fromFile, l, err := load(*f.Config)
		if err != nil {
			errs = append(errs, err)
		} else {
			p, lines = fromFile, l
		}
	}
	sources := map[string]Source{}
	given := map[string]*string{"max_qp": f.MaxQP, "qp_timeout": f.QPTimeout, "retry_cnt": f.RetryCnt, "rnr_retry": f.RNRRetry}
	for _, k := range keys {
		sources[k.name] = Source{Kind: FromDefault}
		if line := lines[k.name]; line > 0 {
			sources[k.name] = Source{FromFile, fmt.Sprintf("%s:%d", *f.Config, line)}
		}
		text := given[k.name]
		if text == nil {
			continue
		}
		sources[k.name] = Source{FromFlag, k.flag}
		if e := k.set(&p, *text); e != nil {
			e.Flag = k.flag
			errs = append(errs, e)
		}
	}
	if errs != nil {
		return Params{}, nil, errors.Join(errs...)
	}
	return p, sources, nil
}
