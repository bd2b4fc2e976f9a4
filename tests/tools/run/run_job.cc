// SPDX-License-Identifier: Apache-2.0
// A program for tests of `ronde run`: run_job FOLDER [STEPS [VICTIM HOW [always]]]. Its ranks add
// numbers for some steps from the checkpoint in FOLDER on, and one may fail at step 5: HOW is kill,
// stop, quiet (_exit(0)), code, or early (_exit(0) before init), in the first life or always.
// Without STEPS it goes on until SIGTERM, as a program does that its cluster may pre-empt.
#include <ronde/ronde.h>
#include <ronde/run.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <limits>
#include <string>
#include <thread>

namespace {

constexpr int kFailingStep = 5;

volatile std::sig_atomic_t is_told = 0;

struct Options {
  std::string folder, how;
  int steps = std::numeric_limits<int>::max();
  int victim = -1;
  bool always = false;
};

int variable(const char* name) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::stoi(text) : -1;
}

/// On every rank.
float sum(float value) {
  ronde::Request request;
  request.name = "x";
  request.op = ronde::ReduceOp::Sum;
  request.shape = {1};
  request.input = request.output = &value;
  ronde::run(request);
  return value;
}

void save(const std::string& path, int step) {
  std::ofstream(path + ".new") << step;
  std::rename((path + ".new").c_str(), path.c_str());
}

void fail(const std::string& how) {
  std::cerr << "rank " << ronde::rank() << " fails: " << how << std::endl;
  if (how == "kill") std::raise(SIGKILL);
  if (how == "quiet") _exit(0);
  if (how == "stop") {
    std::raise(SIGSTOP);
    return;
  }
  std::exit(3);
}

void train(const Options& options) {
  const std::string checkpoint = options.folder + "/checkpoint";
  int step = 0;
  std::ifstream(checkpoint) >> step;
  const bool fails = options.always || variable("RONDE_RESTART") <= 0;
  ronde::barrier();
  std::cout << "rank " << ronde::rank() << " of " << sum(1) << " from step " << step << ", data by "
            << ronde::default_runtime().backend_name(ronde::DeviceKind::Cpu) << std::endl;
  for (; step < options.steps; ++step) {
    if (sum(is_told != 0 ? 1 : 0) > 0) {
      save(options.folder + "/left." + std::to_string(ronde::rank()), step);
      return;
    }
    ronde::mark_step();
    if (ronde::rank() == 0) save(checkpoint, step + 1);
    ronde::note_checkpoint(step);
    ronde::barrier();
    if (fails && step == kFailingStep && ronde::rank() == options.victim) fail(options.how);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options{argv[1], argc > 4 ? argv[4] : ""};
  if (argc > 2) options.steps = std::stoi(argv[2]);
  if (argc > 3) options.victim = std::stoi(argv[3]);
  options.always = argc > 5;
  if (options.how == "early" && variable("RANK") == options.victim) _exit(0);
  try {
    ronde::init();
    std::signal(SIGTERM, [](int) { is_told = 1; });
    train(options);
    ronde::shutdown();
  } catch (const ronde::GroupError& error) {
    // As on a slow disk.
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    save(options.folder + "/survived." + std::to_string(variable("RANK")), error.failed_rank());
    return 9;
  }
  return 0;
}
