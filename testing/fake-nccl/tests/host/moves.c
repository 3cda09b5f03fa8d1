// SPDX-License-Identifier: Apache-2.0
// A host that changes its directory after its first communicator, then requests a dump and
// simulates a hang: PLUGIN FILE_OF_THE_COMMAND.
#include "host.h"

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    load(argv[1]);
    comm = init(0xc0ffee);
    all_reduce(comm, 0);
    if (chdir("/proc") != 0) fail("chdir");
    int (*dump)(const char *) = function("ncclscope_dump");
    int (*drill)(double) = function("ncclscope_simulate_hang");
    if (dump(NULL) != 0) fail("the dump is refused");
    if (drill(60) != 0) fail("the drill is refused");
    for (int i = 0; i < 1000 && access(argv[2], F_OK) != 0; i++) wait_ms(20);
    nccl->finalize(comm);
    say("survived\n");
    return 0;
}
