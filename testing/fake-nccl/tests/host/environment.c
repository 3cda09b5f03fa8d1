// SPDX-License-Identifier: Apache-2.0
// A host that changes its environment after the first communicator, requests its own status, and
// simulates a hang: PLUGIN CONTROL_DIRECTORY FILE_OF_THE_COMMAND.
#include "host.h"

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    load(argv[1]);
    comm = init(0xc0ffee);
    clearenv();
    setenv("SLURM_JOB_ID", "late", 1);
    setenv("LATE", "1", 1);
    wait_for_status(argv[2]);
    int (*drill)(double) = function("ncclscope_simulate_hang");
    if (drill(60) != 0) fail("the drill is refused");
    // The file that the command writes.
    for (int i = 0; i < 1000 && access(argv[3], F_OK) != 0; i++) wait_ms(20);
    nccl->finalize(comm);
    say("survived\n");
    return 0;
}
