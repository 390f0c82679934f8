// SPDX-License-Identifier: BSD-2-Clause

package bench

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Claim is a statement under test. They are those of a practice article on RDMA
// queue pairs (ConnectX-6 Dx, Linux 5.15, OFED 5.8).
type Claim struct {
	ID     string `json:"id"`     // "C6"
	Claim  string `json:"claim"`  // in a sentence
	Figure string `json:"figure"` // the article's figure, or that it has none
}

// Claims returns all of them, C1 to C12.
func Claims() []Claim { return slices.Clone(claims) }

const noFigure = "none: its table is lost"

var claims = []Claim{
	{"C1", "Above 32,768 queue pairs the transition from RTR to RTS becomes slower, and more than in proportion.", "a knee at 32,768, laid to a red-black tree in the kernel"},
	{"C2", "With more than 30,000 queue pairs it helps to do the bookkeeping of a transition 1 ms later, from a high-resolution timer.", "helps; no number"},
	{"C3", "The slowest connection set-ups under congestion come from conflict detection in the connection manager; a window of HZ/10 shortens them.", "P99.9 less 40 %"},
	{"C4", "How many queue pairs stay stable depends on the path MTU: use 70 % of it, with a pool for each MTU; beyond it, memory for doorbells or DMA fails.", noFigure},
	{"C5", "A process on the wrong NUMA node loses throughput of small packets, takes longer for each connection and needs more memory bandwidth.", "12–18 % less, 25–30 µs more, three times as much"},
	{"C6", "Modifying queue pairs in batches of 32 is faster than one after the other.", noFigure},
	{"C7", "A warm pool (a fifth made ahead, the recently used kept active, rnr_retry following the latency) makes waiting for a queue pair shorter.", "P99 less 60 %"},
	{"C8", "Queue pairs survive 500 changes of state a second.", "survive"},
	{"C9", "Queue pairs recover when power was lost.", "recover"},
	{"C10", "The number of queue pairs needed is 1.2 times the active connections plus 0.3 times the burst.", "the formula itself"},
	{"C11", "All measures together bring the share of queue pairs in a state nobody asked for to nearly nothing, and keep connection set-up short.", "0.3 % to below 0.01 %; within 90 µs"},
	{"C12", "Firmware versions must match, because they keep queue pair states in step differently.", "16.32.1012 against 16.32.1015, as an anecdote"},
}

// ClaimOf returns the claim with that ID; one that is not known has only its ID.
func ClaimOf(id string) Claim {
	for _, c := range claims {
		if c.ID == id {
			return c
		}
	}
	return Claim{ID: id}
}

// Ruling is what one experiment says about one claim, and where.
type Ruling struct {
	Claim      Claim  `json:"claim"`
	Experiment string `json:"experiment"`
	Place      string `json:"place"`
	Answer     string `json:"answer"`
	Why        string `json:"why"`
	Where      string `json:"where,omitempty"` // what can decide it: a command
}

// Rulings collects the verdicts of results, by claim.
func Rulings(results []*Result) []Ruling {
	all := []Ruling{}
	for _, r := range results {
		for _, v := range r.Verdicts {
			all = append(all, Ruling{Claim: ClaimOf(v.Claim), Experiment: r.Experiment, Place: r.Provenance.Place, Answer: v.Answer, Why: v.Why, Where: v.Where})
		}
	}
	slices.SortStableFunc(all, func(a, b Ruling) int { return compareClaims(a.Claim.ID, b.Claim.ID) })
	return all
}

// compareClaims puts C2 before C10.
func compareClaims(a, b string) int {
	number := func(s string) int {
		n, err := strconv.Atoi(strings.TrimPrefix(s, "C"))
		if err != nil {
			return len(claims) + 1
		}
		return n
	}
	return cmp.Or(cmp.Compare(number(a), number(b)), cmp.Compare(a, b))
}

// Undecided returns why results have no verdict where one could be expected:
// "c6: interrupted".
func Undecided(results []*Result) (why []string) {
	for _, r := range results {
		switch {
		case r.Interrupted:
			why = append(why, r.Experiment+": interrupted, so it has no verdict")
		case r.Error != "":
			why = append(why, r.Experiment+": failed, so it has no verdict: "+r.Error)
		}
	}
	return why
}

// WriteVerdicts writes the verdicts of results as a table for people.
func WriteVerdicts(w io.Writer, results []*Result) error {
	p := new(page)
	rulings := Rulings(results)
	if len(rulings) == 0 {
		p.b.WriteString("Verdicts: none\n")
	} else {
		p.b.WriteString("Verdicts\n")
		var rows [][]string
		for _, v := range rulings {
			rows = append(rows, []string{v.Claim.ID, fmt.Sprintf("%s (%s, %s)", v.Answer, v.Experiment, v.Place), cmp.Or(v.Where, "-")})
		}
		p.table("lll", []string{"claim", "answer", "where it can be decided"}, rows...)
		last := ""
		for _, v := range rulings {
			if v.Claim.ID != last && v.Claim.Claim != "" {
				p.para(v.Claim.Claim, indent+v.Claim.ID+": ")
			}
			last = v.Claim.ID
		}
	}
	for _, why := range Undecided(results) {
		p.para(why, indent)
	}
	_, err := io.WriteString(w, p.b.String())
	return err
}
