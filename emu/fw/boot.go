// SPDX-License-Identifier: BSD-2-Clause

package fw

import (
	"encoding/binary"
	"sync"
	"time"

	"devxlab.example/mlx5"
)

// phase is how far the driver has brought the function up.
type phase uint8

const (
	phaseOff     phase = iota // before ENABLE_HCA
	phaseEnabled              // pages and capabilities are arranged
	phaseRunning              // after INIT_HCA
)

// boot is a function's way up and down, under its lock.
type boot struct {
	mu    sync.Mutex
	phase phase
	issi  uint16
}

// Pages that the device asks for. What a card asks for is not public; a host
// with little memory must be able to give them.
const (
	bootPages = 64
	initPages = 512
)

func (h *HCA) phaseNow() phase {
	h.boot.mu.Lock()
	defer h.boot.mu.Unlock()
	return h.boot.phase
}

func (h *HCA) enableHCA(c command) check {
	if mlx5.EnableHCAIn(c.in).FunctionID() != 0 {
		return badFunction
	}
	return h.step(phaseOff, phaseEnabled)
}

// step takes the function from one phase to another.
func (h *HCA) step(from, to phase) check {
	h.boot.mu.Lock()
	defer h.boot.mu.Unlock()
	if h.boot.phase != from {
		return badPhase
	}
	h.boot.phase = to
	return ok
}

func (h *HCA) disableHCA(c command) check {
	if mlx5.DisableHCAIn(c.in).FunctionID() != 0 {
		return badFunction
	}
	if h.pages.held() > 0 {
		return pagesHeld
	}
	return h.step(phaseEnabled, phaseOff)
}

func (h *HCA) setISSI(c command) check {
	issi := mlx5.SetISSIIn(c.in).CurrentISSI()
	if issi > 1 {
		return badISSI
	}
	h.boot.mu.Lock()
	h.boot.issi = issi
	h.boot.mu.Unlock()
	return ok
}

func (h *HCA) initHCA(c command) check {
	if h.pages.missing() > 0 {
		return pagesMissing
	}
	return h.step(phaseEnabled, phaseRunning)
}

// Profiles of TEARDOWN_HCA (MLX5_TEARDOWN_HCA_IN_PROFILE_* in mlx5_ifc.h).
const (
	teardownGraceful = 0
	teardownForce    = 1
	teardownFast     = 2
)

// teardownHCA ends whatever there is, as a reset does: the driver that is in a
// hurry destroys nothing. A fast teardown is only prepared, since the driver waits
// for the event of this command; it ends when the driver disables the interface
// (driver, fw.c mlx5_cmd_fast_teardown_hca), which is the front end's affair.
func (h *HCA) teardownHCA(c command) check {
	profile := mlx5.TeardownHCAIn(c.in).Profile()
	if profile > teardownFast {
		return badTeardown
	}
	if profile == teardownFast {
		if h.phaseNow() != phaseRunning {
			return badPhase
		}
		return ok
	}
	if refused := h.step(phaseRunning, phaseEnabled); refused != ok {
		return refused
	}
	h.wipe()
	h.pages.mu.Lock()
	h.pages.extra = 0
	h.pages.mu.Unlock()
	return ok
}

// Operations of QUERY_PAGES and MANAGE_PAGES (driver, pagealloc.c).
const (
	queryBoot    = 1
	queryInit    = 2
	queryRegular = 3

	pagesCantGive = 0
	pagesGive     = 1
	pagesTake     = 2
)

const pageSize = 4096

// pagePool is the host's memory that the device was lent. The emulated device
// needs none of it: it keeps account, as a driver does, and gives back what it
// got.
type pagePool struct {
	mu     sync.Mutex
	list   []uint64
	has    map[uint64]bool
	need   int  // pages that the phase and what is alive take
	asked  int  // requested in an event and not answered
	denied bool // the last request
	extra  int  // needed besides: see WantPages; the host's refusal ends it
	refuse bool // the next that are given: see WantPages
	change chan struct{}
}

func (p *pagePool) held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.list)
}

func (p *pagePool) missing() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.need - len(p.list)
}

// changed wakes those who wait; the pool is locked.
func (p *pagePool) changed() {
	close(p.change)
	p.change = make(chan struct{})
}

func (h *HCA) queryPages(c command) check {
	in := mlx5.QueryPagesIn(c.in)
	if in.FunctionID() != 0 || in.EmbeddedCpuFunction() {
		return badFunction
	}
	p := &h.pages
	p.mu.Lock()
	defer p.mu.Unlock()
	switch in.OpMod() {
	case queryBoot:
		p.need = bootPages
	case queryInit:
		p.need = bootPages + initPages
	case queryRegular:
	default:
		return badOpMod
	}
	mlx5.QueryPagesOut(c.out).SetNumPages(uint32(p.need - len(p.list)))
	return ok
}

func (h *HCA) managePages(c command) check {
	in := mlx5.ManagePagesIn(c.in)
	if in.FunctionID() != 0 || in.EmbeddedCpuFunction() {
		return badFunction
	}
	switch in.OpMod() {
	case pagesCantGive:
		h.pages.mu.Lock()
		defer h.pages.mu.Unlock()
		h.pages.asked, h.pages.denied = 0, h.pages.denied || h.pages.asked > 0
		h.pages.changed()
		return ok
	case pagesGive:
		return h.givePages(in.PAS(), in.InputNumEntries())
	case pagesTake:
		return h.takePages(c, in.InputNumEntries())
	}
	return badOpMod
}

// givePages takes the pages of a list into the pool: all, or none.
func (h *HCA) givePages(list []byte, n uint32) check {
	if uint64(n) > uint64(len(list)/pasBytes) {
		return badPAS
	}
	p := &h.pages
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse {
		// Before Linux 5.18 the driver then says that it cannot give, later ones drop
		// the request (pagealloc.c give_pages): nothing is waited for.
		p.refuse, p.denied, p.asked = false, p.asked > 0, 0
		p.changed()
		return pagesUnasked
	}
	if int(n) > max(p.need-len(p.list), 0)+p.asked {
		return pagesUnasked
	}
	for i := range int(n) {
		addr := binary.BigEndian.Uint64(list[i*pasBytes:])
		var b [1]byte
		if addr == 0 || addr%pageSize != 0 || p.has[addr] || h.mem.ReadDMA(addr, b[:]) != nil {
			for _, a := range p.list[len(p.list)-i:] {
				delete(p.has, a)
			}
			p.list = p.list[:len(p.list)-i]
			return badPage
		}
		p.has[addr] = true
		p.list = append(p.list, addr)
	}
	p.asked = max(p.asked-int(n), 0)
	p.changed()
	return ok
}

// takePages gives pages back: what nothing needs, and all when the function no
// longer runs.
func (h *HCA) takePages(c command, n uint32) check {
	out := mlx5.ManagePagesOut(c.out)
	running := h.phaseNow() == phaseRunning
	p := &h.pages
	p.mu.Lock()
	defer p.mu.Unlock()
	spare := len(p.list)
	if running {
		spare = max(spare-p.need, 0)
	}
	k := min(int64(n), int64(spare), int64(len(out.PAS())/pasBytes))
	for i := range int(k) {
		last := len(p.list) - 1
		addr := p.list[last]
		p.list = p.list[:last]
		delete(p.has, addr)
		binary.BigEndian.PutUint64(out.PAS()[i*pasBytes:], addr)
	}
	if !running {
		p.need = 0
	}
	out.SetOutputNumEntries(uint32(k))
	return ok
}

// Beyond what the first pages hold, objects need more: the device asks for them
// and the command that makes the object waits. Figures are assumed: a context
// has 256 bytes, and what a command lists as much as its list. So the memory
// that a driver can make the device use is bounded by what it gives of its own.
const (
	contextBytes   = 256
	objectsPerPage = pageSize / contextBytes
	freeObjects    = initPages * objectsPerPage
	pageChunk      = 64
	pagePatience   = 30 * time.Second // below the driver's own for a command
)

// cost is how many contexts the object takes that a command makes.
func cost(in []byte) int { return 1 + len(in)/contextBytes }

// reserve makes room for n objects more, or fewer if n is negative. It may
// wait for the driver.
func (h *HCA) reserve(n int) check {
	if h.driver == nil {
		return ok
	}
	p := &h.pages
	p.mu.Lock()
	objects := h.alive.Add(int64(n))
	extra := p.extra
	if over := int(objects) - freeObjects; over > 0 {
		extra += ((over+objectsPerPage-1)/objectsPerPage + pageChunk - 1) / pageChunk * pageChunk
	}
	p.need = bootPages + initPages + extra
	defer p.mu.Unlock()
	if n < 0 {
		// A chunk in hand, so that one object that comes and goes moves nothing.
		if spare := len(p.list) - p.need - pageChunk; spare >= pageChunk {
			h.requestPages(-int32(spare))
		}
		return ok
	}
	limit := time.NewTimer(pagePatience)
	defer limit.Stop()
	for short := p.need - len(p.list); short > 0; short = p.need - len(p.list) {
		if p.denied {
			p.denied, p.extra = false, 0
			h.alive.Add(-int64(n))
			return noPages
		}
		if more := short - p.asked; more > 0 {
			p.asked += more
			h.requestPages(int32(more))
		}
		wait := p.change
		p.mu.Unlock()
		var late bool
		select {
		case <-wait:
		case <-h.down:
			late = true
		case <-limit.C:
			late = true
		}
		p.mu.Lock()
		if late {
			p.denied = true
		}
	}
	return ok
}

// WantPages makes the device need n pages more: the next command that makes an
// object asks the driver for them, and waits. With refuse the device does not take
// what it is given, and the command fails for lack of pages.
func (h *HCA) WantPages(n int, refuse bool) {
	h.pages.mu.Lock()
	h.pages.extra += n
	h.pages.refuse = refuse
	h.pages.mu.Unlock()
}

// requestPages asks the driver for pages, or to take some back (struct
// mlx5_eqe_page_req).
func (h *HCA) requestPages(n int32) {
	var data eventBytes
	binary.BigEndian.PutUint32(data[4:], uint32(n))
	h.report(mlx5.EventPageRequest, 0, &data)
}
