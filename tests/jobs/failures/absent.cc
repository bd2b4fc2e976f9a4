// SPDX-License-Identifier: Apache-2.0
// One rank of a job in which a rank never calls ronde::init(): mp_absent <folder> <absent> <mpi>.
// <mpi> says who starts MPI: "ronde", or the program, which the absent rank does, too: "program"
// with MPI_THREAD_MULTIPLE, "program for one thread" with MPI_THREAD_FUNNELED. The others write
// what init() threw into the folder; the absent one lives until they have.
#include <mpi.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include "ronde/ronde.h"
#include "tests/jobs/failures/notes.h"
#include "tests/support/processes/launcher_rank.h"

namespace {

using ronde::test::launched_rank;
using ronde::test::launched_size;
using ronde::test::Notes;
using ronde::test::now_s;
using ronde::test::outcome_of;

void report_init(const Notes& notes) {
  const double start = now_s();
  nlohmann::json report = outcome_of([] { ronde::init(); });
  report["waited_s"] = now_s() - start;
  report["is_initialized"] = ronde::is_initialized();
  notes.write_report(report);
}

}  // namespace

int main(int count, char** words) {
  if (count != 4) {
    std::cerr << "usage: mp_absent <folder> <absent> <mpi>\n";
    return 2;
  }
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  const int rank = launched_rank();
  const int absent = std::stoi(words[2]);
  const Notes notes(words[1], rank);
  if (const std::string who = words[3]; who != "ronde") {
    const int level = who == "program" ? MPI_THREAD_MULTIPLE : MPI_THREAD_FUNNELED;
    int provided = MPI_THREAD_SINGLE;
    if (MPI_Init_thread(nullptr, nullptr, level, &provided) != MPI_SUCCESS) return 3;
  }
  if (rank != absent) {
    report_init(notes);
    return 9;
  }
  for (int other = 0; other < launched_size(); ++other) {
    if (other != absent) notes.await("report", other);
  }
  // MPI was not finalised by the others: to do so here would wait for them.
  _exit(9);
}
