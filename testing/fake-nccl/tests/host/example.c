// SPDX-License-Identifier: Apache-2.0
// Runs examples/c/record.c: records three steps of two operations, copies them to the directory of
// the second argument, and prints what a drill reports.
#include "host.h"

#include "../../../../examples/c/record.c"

static void train(uint64_t step) {
    all_reduce(comm, 2 * step);
    all_reduce(comm, 2 * step + 1);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    if (find_plugin()) fail("the plugin is loaded before NCCL loads it");
    load(argv[1]);
    comm = init(0xc0ffee);
    void *plugin = find_plugin();
    if (!plugin) fail("find_plugin");
    if (record_steps(plugin, 3, train, argv[2]) != NCCLSCOPE_OK) fail("record_steps");
    if (record_steps(plugin, 0, train, "/proc/nonesuch") != NCCLSCOPE_SYSTEM) fail("refused");
    NCCLSCOPE_FIND(plugin, ncclscope_simulate_hang);
    if (print_hangs(plugin, stdout) != NCCLSCOPE_OK) fail("print_hangs");
    if (ncclscope_simulate_hang(-1.0) != NCCLSCOPE_BAD) fail("a negative time");
    if (ncclscope_simulate_hang(0.5) != NCCLSCOPE_OK) fail("simulate_hang");
    wait_ms(4000);
    nccl->finalize(comm);
    puts("survived");
    return 0;
}
