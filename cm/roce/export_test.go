// SPDX-License-Identifier: BSD-2-Clause

package roce

// For tests from outside, which may import what imports this package.
var (
	Packets   = packets
	NewParser = parser
)

const EtherBytes = etherBytes
