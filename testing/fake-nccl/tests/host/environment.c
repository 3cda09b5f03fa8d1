// SPDX-License-Identifier: Apache-2.0
// A host that changes its environment after the first communicator, asks for its own status, and
// tries what a hang does: PLUGIN CONTROL_DIRECTORY.
#include "host.h"
#include <dirent.h>
#include <sys/socket.h>
#include <sys/un.h>

static void print_status(const char *folder) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    DIR *dir = opendir(folder);
    struct dirent *entry;
    while (dir && (entry = readdir(dir))) {
        if (strstr(entry->d_name, ".sock"))
            snprintf(address.sun_path, sizeof address.sun_path, "%.50s/%.50s", folder, entry->d_name);
    }
    int to = socket(AF_UNIX, SOCK_STREAM, 0);
    char answer[4096] = {0};
    if (connect(to, (void *)&address, sizeof address) != 0) fail("no socket");
    if (write(to, "status\n", 7) != 7) fail("write");
    if (read(to, answer, sizeof answer - 1) <= 0) fail("read");
    say(answer);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    load(argv[1]);
    comm = init(0xc0ffee);
    clearenv();
    setenv("SLURM_JOB_ID", "late", 1);
    setenv("LATE", "1", 1);
    print_status(argv[2]);
    int (*drill)(double) = function("ncclscope_simulate_hang");
    if (drill(60) != 0) fail("the drill is refused");
    wait_ms(1500);
    nccl->finalize(comm);
    say("survived\n");
    return 0;
}
