// SPDX-License-Identifier: Apache-2.0
// A host that dumps DUMPS times as fast as it can, and once at its beginning: PLUGIN DUMPS.
#include "host.h"

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    load(argv[1]);
    int (*dump)(const char *) = function("ncclscope_dump");
    const char *(*error)(void) = function("ncclscope_error");
    comm = init(0xc0ffee);
    // The recording's file may not exist yet.
    if (dump(NULL) != 0) fail(error());
    for (int i = 0; i < 100; i++) all_reduce(comm, i);
    for (int i = 0; i < atoi(argv[2]); i++)
        if (dump(NULL) != 0) fail(error());
    nccl->finalize(comm);
    say("survived\n");
    return 0;
}
