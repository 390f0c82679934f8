// SPDX-License-Identifier: BSD-2-Clause

package devx

import (
	"errors"
	"sync"

	"devxlab.example/internal/usermem"
)

// pool is memory for the queues and doorbell records of verbs: mapped, but
// registered by nobody, since the driver pins what a create command names.
// Doorbell records share pages, as in libmlx5: the driver keeps a list of the
// pages of a context, and walks it for each create.
type pool struct {
	mu     sync.Mutex
	chunks []*usermem.Region
	rest   block // of the last chunk
	free   map[int][]block
}

// block is a part of a pool.
type block struct {
	b    []byte
	addr uint64
}

func (b block) part(at, n int) block { return block{b.b[at : at+n : at+n], b.addr + uint64(at)} }

// poolSize is the size of the block that n bytes get: a doorbell record's, or
// whole pages.
func poolSize(n int) int {
	if n <= dbrSize {
		return dbrSize
	}
	return roundUp(n)
}

// get returns n zeroed bytes, at least.
func (p *pool) get(n int) (block, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, err := p.take(poolSize(n))
	clear(b.b)
	return b, err
}

func (p *pool) take(n int) (block, error) {
	if l := p.free[n]; len(l) > 0 {
		p.free[n] = l[:len(l)-1]
		return l[len(l)-1], nil
	}
	if n == dbrSize {
		page, err := p.take(queuePage)
		if err != nil {
			return block{}, err
		}
		for at := dbrSize; at < queuePage; at += dbrSize {
			p.putLocked(page.part(at, dbrSize))
		}
		return page.part(0, dbrSize), nil
	}
	if len(p.rest.b) < n {
		size := arenaChunk
		if i := len(p.chunks); i < 16 {
			size = min(arenaChunk, arenaFirst<<i)
		}
		mem, err := usermem.Alloc(max(n, size))
		if err != nil {
			return block{}, err
		}
		p.chunks = append(p.chunks, mem)
		p.rest = block{mem.Bytes(), mem.Addr()}
	}
	b := p.rest.part(0, n)
	p.rest = p.rest.part(n, len(p.rest.b)-n)
	return b, nil
}

// put gives a block back.
func (p *pool) put(b block) {
	if b.b == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.putLocked(b)
}

func (p *pool) putLocked(b block) {
	if p.free == nil {
		p.free = map[int][]block{}
	}
	p.free[len(b.b)] = append(p.free[len(b.b)], b)
}

// release unmaps everything.
func (p *pool) release() error {
	var errs []error
	for _, c := range p.chunks {
		errs = append(errs, c.Free())
	}
	return errors.Join(errs...)
}

// queueMem is the buffer of a queue and its doorbell record.
type queueMem struct{ buf, dbr block }

func (p *pool) queue(n int) (m queueMem, err error) {
	if m.buf, err = p.get(n); err != nil {
		return m, err
	}
	if m.dbr, err = p.get(dbrSize); err != nil {
		p.put(m.buf)
	}
	return m, err
}

func (p *pool) giveBack(m queueMem) {
	p.put(m.buf)
	p.put(m.dbr)
}
