// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/launched/launch.h"

#include <algorithm>
#include <initializer_list>

#include "backends/launcher.h"

namespace ronde {
namespace {

constexpr std::uint64_t kLargestPort = 65535;
// Lower than the ports that systems choose for connections.
constexpr std::uint64_t kFirstSlurmPort = 20000;
constexpr std::uint64_t kSlurmPorts = 10000;

/// Reads the launcher's variables, and records the first problem.
class Reader {
 public:
  Reader(const EnvironmentLookup& variables, Launch& launch)
      : variables_(variables), launch_(launch) {}

  std::string text(const char* name) const { return variables_(name).value_or(""); }

  std::string first_of(std::initializer_list<const char*> names) const {
    std::string value;
    for (const char* const name : names) value = value.empty() ? text(name) : value;
    return value;
  }

  template <typename Number = int>
  Number required(const char* name) {
    const auto number = detail::number_in<Number>(variables_, name);
    if (!number)
      record(std::string(name) +
             (text(name).empty() ? " is not set" : "=" + text(name) + " is no number"));
    return number.value_or(0);
  }

  int optional(const char* name) { return text(name).empty() ? -1 : required(name); }

  void record(const std::string& what) {
    if (launch_.problem.empty()) launch_.problem = what;
  }

 private:
  const EnvironmentLookup& variables_;
  Launch& launch_;
};

bool is_one(const EnvironmentLookup& variables, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* const name) {
    return detail::number_in(variables, name) == 1;
  });
}

Launch by_torchrun(const EnvironmentLookup& variables, std::uint64_t port) {
  Launch launch;
  Reader reader(variables, launch);
  launch.size = reader.required("WORLD_SIZE");
  launch.size_source = "WORLD_SIZE";
  launch.rank = reader.required("RANK");
  launch.local_rank = reader.optional("LOCAL_RANK");
  launch.job = "run '" + reader.text("TORCHELASTIC_RUN_ID") + "'";
  launch.root_host = reader.text("MASTER_ADDR");
  launch.host_source = "MASTER_ADDR";
  launch.one_host = detail::number_in(variables, "LOCAL_WORLD_SIZE") == launch.size;
  if (launch.root_host.empty()) reader.record("MASTER_ADDR is not set");
  launch.port_source = "RONDE_PORT";
  if (port == 0) {
    // MASTER_PORT itself belongs to torchrun's agent, or to the program's c10d.
    const int master_port = reader.required("MASTER_PORT");
    if (master_port < 1 || master_port >= static_cast<int>(kLargestPort)) {
      reader.record("MASTER_PORT=" + reader.text("MASTER_PORT") + " has no port after it");
    }
    launch.port_source = "MASTER_PORT + 1";
    port = static_cast<std::uint64_t>(master_port) + 1;
  }
  launch.port = static_cast<std::uint16_t>(port);
  return launch;
}

Launch by_slurm(const EnvironmentLookup& variables, std::uint64_t port) {
  Launch launch;
  Reader reader(variables, launch);
  launch.size = reader.required("SLURM_NTASKS");
  launch.size_source = "SLURM_NTASKS";
  launch.rank = reader.required("SLURM_PROCID");
  launch.local_rank = reader.optional("SLURM_LOCALID");
  const auto job = reader.required<std::uint64_t>("SLURM_JOB_ID");
  const int step = reader.required("SLURM_STEP_ID");
  launch.job = "Slurm's job " + std::to_string(job) + ", step " + std::to_string(step);
  launch.root_host = reader.text("MASTER_ADDR");
  launch.host_source = "MASTER_ADDR";
  if (launch.root_host.empty()) {
    launch.root_host = first_host(reader.first_of({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}));
    launch.host_source = "the first of Slurm's nodes";
    launch.one_host = is_one(variables, {"SLURM_STEP_NUM_NODES", "SLURM_NNODES"});
  }
  if (launch.root_host.empty()) {
    launch.root_host = reader.text("SLURM_LAUNCH_NODE_IPADDR");
    launch.host_source = "SLURM_LAUNCH_NODE_IPADDR";
  }
  if (launch.root_host.empty()) reader.record("SLURM_STEP_NODELIST is not set");
  launch.port_source = "RONDE_PORT";
  if (port == 0) {
    launch.port_source = "Slurm's job and step";
    const auto numbered = 10 * job + static_cast<std::uint64_t>(step);
    port = kFirstSlurmPort + numbered % kSlurmPorts;
  }
  launch.port = static_cast<std::uint16_t>(port);
  return launch;
}

/// Checks the rank, and completes the text of a problem: `needs` lists the required variables.
Launch checked(Launch launch, const std::string& starter, const std::string& needs) {
  const bool fits = launch.rank >= 0 && launch.rank < launch.size;
  if (launch.problem.empty() && !fits) {
    launch.problem = "rank " + std::to_string(launch.rank) + " is none of 0 to " +
                     std::to_string(launch.size - 1);
  }
  if (!launch.problem.empty()) {
    launch.problem = "this process was started as one of " + std::to_string(launch.size) +
                     " ranks by " + starter + ", but " + launch.problem + ": a start needs " +
                     needs;
  }
  return launch;
}

}  // namespace

std::optional<Launch> find_launch(const EnvironmentLookup& variables, std::uint64_t port,
                                  bool has_mpi) {
  const auto number = [&](const char* name) { return detail::number_in(variables, name); };
  bool of_mpi = false;
  for (const char* const name :
       {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "MPIRUN_RANK", "MV2_COMM_WORLD_RANK"}) {
    of_mpi = of_mpi || number(name);
  }
  const bool of_torchrun = variables("TORCHELASTIC_RUN_ID").has_value();
  const bool in_step = number("SLURM_NTASKS").value_or(0) > 1 && number("SLURM_STEP_ID");
  const int world = number("WORLD_SIZE").value_or(0);
  const bool is_alone = world == 1 && (of_torchrun || (!of_mpi && number("RANK") == 0));
  if (is_alone && (of_mpi || in_step)) return Launch();
  const bool slurm_knows =
      in_step && number("SLURM_PROCID") && !variables("RANK") && variables("SLURM_JOB_ID");
  const bool imitates = !of_mpi && !slurm_knows && (variables("RANK") || variables("MASTER_ADDR"));
  if (world > 1 && (of_torchrun || imitates)) {
    return checked(by_torchrun(variables, port), of_torchrun ? "torchrun" : "what sets WORLD_SIZE",
                   "RANK, WORLD_SIZE, MASTER_ADDR, and MASTER_PORT or RONDE_PORT. To run alone, "
                   "unset WORLD_SIZE");
  }
  const bool mpi_asks_slurm = has_mpi && !variables("I_MPI_PMI_LIBRARY").value_or("").empty();
  if (in_step && !of_mpi && !mpi_asks_slurm) {
    return checked(by_slurm(variables, port), "Slurm",
                   "SLURM_PROCID, SLURM_JOB_ID, and SLURM_STEP_NODELIST or MASTER_ADDR. To run "
                   "alone, use 'srun -n 1'");
  }
  return std::nullopt;
}

std::string first_host(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    if (list.front() != '[') {
      host += list.front();
      list.remove_prefix(1);
      continue;
    }
    const std::size_t close = std::min(list.find(']'), list.size());
    host += list.substr(1, std::min(list.find_first_of("-,]"), close) - 1);
    list.remove_prefix(std::min(close + 1, list.size()));
  }
  return host;
}

}  // namespace ronde
