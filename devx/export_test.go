// SPDX-License-Identifier: BSD-2-Clause

package devx

import "devxlab.example/devx/abi"

// OpenFile opens the file behind a name, for tests that put their own in its
// place.
func OpenFile(name string) (File, Info, error) { return openFile(name) }

// ModifyExtended is Modify by EX_MODIFY_QP, also without a rate.
func (v *VerbsQP) ModifyExtended(a QPAttr, mask AttrMask) error {
	s, err := v.begin()
	if err != nil {
		return err
	}
	defer v.end(s)
	return s.modifyBy(abi.EX_MODIFY_QP, v, &a, mask)
}

// VerbsAttrs translates an encoded transition.
var VerbsAttrs = verbsAttrs

// VerbsMasks are the bits that a transition requires and takes.
var VerbsMasks = verbsMasks

// ViewOf is a part of a buffer as a struct of package abi.
func ViewOf[T any](b []byte) *T { return viewOf[T](b) }
