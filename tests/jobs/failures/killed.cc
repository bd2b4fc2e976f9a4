// SPDX-License-Identifier: Apache-2.0
// One rank of a job in which a rank is killed at a random moment, while all run random programs:
// mp_killed <folder> <victim> <moment> <delay in us> <seed> <hosts>. <hosts> has a letter for each
// rank, which names its host. The others write what they got of it into the folder. The victim of
// the moment "absent" lives, and never calls ronde::init(). Where MPI is started by the program, it
// does that, too: "absent, MPI for all threads", "absent, MPI for one thread".
#include <dlfcn.h>
#include <mpi.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ronde/ronde.h"
#include "tests/jobs/failures/notes.h"
#include "tests/support/harness/watchdog.h"
#include "tests/support/processes/launcher_rank.h"
#include "tests/support/ranks/random_rank.h"

namespace ronde::test {
namespace {

/// Where all threads of a rank are, if it is not through by then. Above all limits of a job, and
/// below the deadline after which it is ended.
constexpr std::chrono::seconds kShowsStacks{80};

struct Kill {
  int victim;
  std::string moment;
  std::chrono::microseconds delay;
  std::uint64_t seed;
  std::string hosts;
};

/// A sum of at most 4 MiB.
void run_large(Dice& dice) {
  // Left alone on a failure: see Note [Buffers after a group error].
  auto* const data = new std::vector<float>(1 + dice.below(1 << 20), 1.0F);
  Request request;
  request.name = "large";
  request.shape = {static_cast<std::int64_t>(data->size())};
  request.input = request.output = data->data();
  run(request);
  if (data->back() != static_cast<float>(size())) throw std::runtime_error("a sum is wrong");
  delete data;
}

/// Random programs of all ranks and of process sets, and large sums between them.
void work(const Kill& kill, int parts) {
  const std::set<char> hosts(kill.hosts.begin(), kill.hosts.end());
  const RandomRank::Engine engine = {[]() -> Runtime& { return default_runtime(); }, false,
                                     static_cast<int>(hosts.size())};
  auto* const programs = new RandomPrograms(engine, rank(), size(), kill.seed);  // and this
  Dice dice(kill.seed);                                                          // the same on all
  for (int part = 0; part < parts; ++part) {
    programs->play(5);
    run_large(dice);
  }
}

void end(const Notes& notes) {
  notes.write_own("end", std::to_string(now_s()));
  raise(SIGKILL);
}

/// Runs in MPI_Finalize, in place of it, on a victim of that moment.
std::function<void()> in_finalize;

void stop(const Notes& notes) {
  notes.write_own("pid", std::to_string(getpid()));
  raise(SIGSTOP);
}

/// The victim ends, and the survivors throw or return.
void live(const Kill& kill, const Notes& notes, bool is_victim) {
  const auto begin = [&](const std::string& moment) {
    if (!is_victim || kill.moment != moment) return;
    std::thread([notes, delay = kill.delay] {
      std::this_thread::sleep_for(delay);
      end(notes);
    }).detach();
  };
  begin("in init");
  init();
  begin("at work");
  const bool stops = kill.moment == "stopped in MPI_Finalize";
  const bool shuts_down = kill.moment != "in init" && kill.moment != "at work";
  if (is_victim && kill.moment.ends_with("in MPI_Finalize")) {
    in_finalize = [notes, stops] { stops ? stop(notes) : end(notes); };
  }
  work(kill, shuts_down ? 1 : std::numeric_limits<int>::max());
  begin("in shutdown");
  shutdown();
}

int run_absence(const std::string& moment, const Notes& notes, int own, int absent) {
  if (moment != "absent") {
    const bool for_all = moment.ends_with("all threads");
    const int level = for_all ? MPI_THREAD_MULTIPLE : MPI_THREAD_FUNNELED;
    int provided = MPI_THREAD_SINGLE;
    if (MPI_Init_thread(nullptr, nullptr, level, &provided) != MPI_SUCCESS) return 3;
  }
  if (own != absent) {
    const double start = now_s();
    nlohmann::json report = outcome_of([] { init(); });
    report["waited_s"] = now_s() - start;
    report["is_initialized"] = is_initialized();
    notes.write_report(report);
    return 9;
  }
  for (int other = 0; other < launched_size(); ++other) {
    if (other != absent) notes.await("report", other);
  }
  // MPI was not finalised by the others: to do so here would wait for them.
  _exit(9);
}

int run_rank(const Kill& kill, const std::string& folder) {
  const int own = said_by_launcher("PMI_RANK", "RANK");
  const std::string host(1, kill.hosts.at(static_cast<std::size_t>(own)));
  setenv("RONDE_HOST_ID", host.c_str(), 1);
  const Notes notes(folder, own);
  if (kill.moment.starts_with("absent")) return run_absence(kill.moment, notes, own, kill.victim);
  const bool is_victim = own == kill.victim;
  nlohmann::json report = outcome_of([&] { live(kill, notes, is_victim); });
  while (is_victim) pause();
  shutdown();
  if (notes.exists("end", kill.victim)) {
    report["after_s"] = report["at_s"].get<double>() - std::stod(notes.read("end", kill.victim));
  }
  notes.write_report(report);
  return 9;
}

}  // namespace
}  // namespace ronde::test

/// In place of MPI's, which it calls.
int PMPI_Finalize() {
  if (ronde::test::in_finalize) ronde::test::in_finalize();
  return reinterpret_cast<int (*)()>(dlsym(RTLD_NEXT, "PMPI_Finalize"))();
}

int main(int count, char** words) {
  if (count != 7) {
    std::cerr << "usage: mp_killed <folder> <victim> <moment> <delay in us> <seed> <hosts>\n";
    return 2;
  }
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  ronde_test::watchdog().arm("a rank of mp_killed", ronde::test::kShowsStacks);
  return ronde::test::run_rank(
      {std::stoi(words[2]), words[3], std::chrono::microseconds(std::stoul(words[4])),
       std::stoull(words[5]), words[6]},
      words[1]);
}
