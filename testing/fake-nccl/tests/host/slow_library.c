// SPDX-License-Identifier: Apache-2.0
// A library that takes seven seconds to load, as from a file system that hangs.
#include <unistd.h>

__attribute__((constructor)) static void load(void) { sleep(7); }
