// SPDX-License-Identifier: Apache-2.0
// A simulation that owns MPI and trains two models in its time loop: of the next temperature of a
// rod, on all ranks, and of the local mean, a TorchScript file, on every second rank.
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "online_model.h"

namespace {

constexpr int kPoints = 32;  // of each rank

struct Arguments {
  int level = MPI_THREAD_SINGLE;
  int steps = 40;
  std::string script = "host_model.pt";
};

Arguments parse_arguments(int argc, char** argv) {
  const std::map<std::string, int> levels = {{"single", MPI_THREAD_SINGLE},
                                             {"funneled", MPI_THREAD_FUNNELED},
                                             {"serialized", MPI_THREAD_SERIALIZED},
                                             {"multiple", MPI_THREAD_MULTIPLE}};
  Arguments arguments;
  if (argc > 1 && levels.count(argv[1]) == 0) {
    throw std::runtime_error("usage: host [single|funneled|serialized|multiple] [STEPS] [SCRIPT]");
  }
  if (argc > 1) arguments.level = levels.at(argv[1]);
  if (argc > 2) arguments.steps = std::stoi(argv[2]);
  if (argc > 3) arguments.script = argv[3];
  return arguments;
}

/// This rank's part of a rod whose temperature diffuses.
class Rod {
 public:
  Rod(int rank, int ranks) : rank_(rank), ranks_(ranks), points_(kPoints + 2) {
    for (int i = 1; i <= kPoints; ++i) points_[static_cast<std::size_t>(i)] = start(i);
  }

  /// Takes a time step. Returns the neighbourhood of each point before it, and the point after it.
  void advance(std::vector<double>& before, std::vector<double>& after) {
    const int left = (rank_ + ranks_ - 1) % ranks_;
    const int right = (rank_ + 1) % ranks_;
    MPI_Sendrecv(&points_[1], 1, MPI_DOUBLE, left, 0, &points_[kPoints + 1], 1, MPI_DOUBLE, right,
                 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(&points_[kPoints], 1, MPI_DOUBLE, right, 1, &points_[0], 1, MPI_DOUBLE, left, 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    before.clear();
    after.clear();
    for (std::size_t i = 1; i <= kPoints; ++i) {
      before.insert(before.end(), {points_[i - 1], points_[i], points_[i + 1]});
      after.push_back(points_[i] + 0.2 * (points_[i - 1] - 2 * points_[i] + points_[i + 1]));
    }
    std::copy(after.begin(), after.end(), points_.begin() + 1);
  }

 private:
  double start(int i) const {
    const double place = (rank_ * kPoints + i) / static_cast<double>(ranks_ * kPoints);
    return std::sin(6.283 * place) + 0.5 * std::sin(40 * place);
  }

  const int rank_, ranks_;
  std::vector<double> points_;
};

std::vector<double> means_of(const std::vector<double>& neighbourhoods) {
  std::vector<double> means;
  for (std::size_t i = 0; i < neighbourhoods.size(); i += 3) {
    means.push_back((neighbourhoods[i] + neighbourhoods[i + 1] + neighbourhoods[i + 2]) / 3);
  }
  return means;
}

std::vector<double> gather(const std::vector<double>& own, MPI_Comm communicator) {
  int ranks = 0;
  MPI_Comm_size(communicator, &ranks);
  std::vector<double> all(own.size() * static_cast<std::size_t>(ranks));
  const int count = static_cast<int>(own.size());
  MPI_Allgather(own.data(), count, MPI_DOUBLE, all.data(), count, MPI_DOUBLE, communicator);
  return all;
}

/// A model that the ranks of a communicator train together, and a copy that each trains by itself
/// with the samples of all of them, to check that both are the same.
class Model {
 public:
  Model(const std::string& name, MPI_Comm communicator, const std::string& script = "")
      : communicator_(communicator),
        model_(name, communicator, script),
        alone_(name, MPI_COMM_NULL, script) {}

  double train(std::vector<double> inputs, std::vector<double> targets) {
    std::vector<double> all_inputs = gather(inputs, communicator_);
    std::vector<double> all_targets = gather(targets, communicator_);
    alone_.train(all_inputs, all_targets);
    return model_.train(inputs, targets);
  }
  void finish() { model_.finish(); }

  double difference() const {
    const std::vector<double> own = model_.parameters();
    const std::vector<double> alone = alone_.parameters();
    double largest = 0;
    for (std::size_t i = 0; i < own.size(); ++i) {
      largest = std::max(largest, std::abs(own[i] - alone[i]));
    }
    return largest;
  }

 private:
  const MPI_Comm communicator_;
  OnlineModel model_, alone_;
};

/// Returns the largest difference between a model's parameters and those of one process.
double simulate(const Arguments& arguments, int rank, int ranks) {
  if (rank == 0) OnlineModel::write_script(arguments.script);
  MPI_Comm some = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &some);  // orders the writing, too
  double difference = 0;
  {
    Rod rod(rank, ranks);
    Model next("next", MPI_COMM_WORLD);
    Model mean(rank % 2 == 0 ? "mean_even" : "mean_odd", some, arguments.script);
    std::vector<double> before, after;
    for (int step = 0; step < arguments.steps; ++step) {
      rod.advance(before, after);
      const double loss = next.train(before, after);
      const double loss_of_mean = mean.train(before, means_of(before));
      if (rank == 0 && (step % 10 == 0 || step + 1 == arguments.steps)) {
        std::printf("step %3d   loss of the next temperature %.2e   of the mean %.2e\n", step, loss,
                    loss_of_mean);
      }
    }
    mean.finish();
    next.finish();
    difference = std::max(next.difference(), mean.difference());
  }
  MPI_Comm_free(&some);
  return difference;
}

}  // namespace

int main(int argc, char** argv) try {
  const Arguments arguments = parse_arguments(argc, argv);
  int provided = 0, rank = 0, ranks = 1;
  MPI_Init_thread(&argc, &argv, arguments.level, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  double difference = simulate(arguments, rank, ranks);
  MPI_Allreduce(MPI_IN_PLACE, &difference, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  if (rank == 0) std::printf("largest difference to one process: %.1e\n", difference);
  MPI_Finalize();
  return difference < 1e-10 ? EXIT_SUCCESS : EXIT_FAILURE;
} catch (const std::exception& error) {
  std::fprintf(stderr, "host: %s\n", error.what());
  return EXIT_FAILURE;
}
