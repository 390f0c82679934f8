// SPDX-License-Identifier: BSD-2-Clause

package devx

// OpenFile opens the file behind a name, for tests that put their own in its
// place.
func OpenFile(name string) (File, Info, error) { return openFile(name) }
