// A kernel whose image runs host code where it is loaded, as through a fault of the driver. It computes what affine.cu
// does, and ends its process with the sum of what it could do there as its exit status.
#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "affine.cu"

static bool opens(const char* path, int flags) { return open(path, flags | O_CLOEXEC, 0600) >= 0; }

static bool ran(pid_t child) {
  if (child == 0) _exit(0);
  return child > 0;
}

static int escaped() {
  char environ[64];
  snprintf(environ, sizeof environ, "/proc/%d/environ", (int)getppid());
  int found = 0;
  found |= opens(getenv("KW_TEST_SECRET"), O_RDONLY) << 0;
  found |= opens(getenv("KW_TEST_SECRET"), O_WRONLY) << 1;
  found |= opens("/tmp/kw-test-new", O_CREAT | O_WRONLY) << 2;
  found |= opens(environ, O_RDONLY) << 3;
  found |= (socket(AF_UNIX, SOCK_STREAM, 0) >= 0 || socket(AF_INET, SOCK_STREAM, 0) >= 0) << 4;
  found |= (ran(fork()) || ran((pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0))) << 5;
  found |= (kill(getppid(), 0) == 0) << 6;
  return found;
}

__attribute__((constructor)) static void run() {
  int there = 1, everywhere = 1;
  there = escaped();
  std::thread([&] { everywhere = escaped(); }).join();  // threads can be made, and are confined, too
  if (there | everywhere) {
    fprintf(stderr, "escaped: %d here, %d in a thread\n", there, everywhere);
    _exit(1);
  }
}
