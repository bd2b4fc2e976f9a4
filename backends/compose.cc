// SPDX-License-Identifier: Apache-2.0
#include "backends/compose.h"

#include <tuple>
#include <utility>

#include "backends/hierarchical/hierarchical.h"
#include "backends/shm/shm.h"
#include "backends/socket/launched/launch.h"
#include "backends/socket/launched/launched_start.h"
#include "ronde/log.h"

#ifdef RONDE_HAVE_UCX
#include "backends/ucx/ucx.h"
#endif
#ifdef RONDE_HAVE_MPI
#include "backends/mpi/mpi.h"
#endif

namespace ronde {
namespace {

/// Warns of algorithms that the user has forced and these ranks cannot use.
void warn_of_unsuited_algorithms(const Config& config, const BackendContext& context) {
  const std::tuple<const char*, Collective, const std::string&> forced[] = {
      {"RONDE_ALLGATHER", Collective::Allgather, config.allgather},
      {"RONDE_REDUCESCATTER", Collective::Reducescatter, config.reducescatter}};
  const int ranks = context.topology->size;
  for (const auto& [variable, collective, name] : forced) {
    const auto algorithm = parse_algorithm(collective, name);
    if (!algorithm || suits(collective, *algorithm, static_cast<std::size_t>(ranks))) continue;
    context.warn(variable + ("=" + name) + " does not suit " + std::to_string(ranks) +
                 " ranks, only a power of two: another algorithm is used");
  }
}

/// Adds the backends that move data between hosts.
void add_fabric_backends(const Config& config, MakeFabric make, MakeFabric make_for_set,
                         BuiltIn& built_in) {
  const auto fabric = std::make_shared<SharedFabric>(
      [config, make = std::move(make)](BackendContext& context) {
        warn_of_unsuited_algorithms(config, context);
        return make(context);
      },
      std::move(make_for_set));
  const FabricBackendOptions options = {.algorithms = algorithm_table(config),
                                        .exact = config.exact};
  built_in.fabric = fabric;
  built_in.backends.emplace("fabric", fabric_backend_factory(fabric, options));
  built_in.backends.emplace("hierarchical", hierarchical_backend_factory(fabric, options));
}

#ifdef RONDE_HAVE_MPI
constexpr bool kHaveMpi = true;
#else
constexpr bool kHaveMpi = false;
#endif

#ifdef RONDE_HAVE_UCX
constexpr bool kHaveUcx = true;

MakeFabric make_ucx_fabric() {
  UcxOptions options;
#ifdef RONDE_HAVE_MPI
  options.ignored_transports = kMpiTransportsOfUcx;
#endif
  return ucx_fabric_maker(options);
}
#else
constexpr bool kHaveUcx = false;

MakeFabric make_ucx_fabric() {
  return [](BackendContext&) -> std::unique_ptr<Fabric> {
    throw UsageError(
        "this build of Ronde has no UCX to send messages with: build it where UCX is installed "
        "(Debian: libucx-dev)");
  };
}
#endif

/// All parts but the transport, for ranks whose data moves without MPI. `why`: the end of the error
/// for users who ask for MPI.
BuiltIn parts_without_mpi(const Config& config, const std::string& why) {
  BuiltIn built_in;
  built_in.make_board = shm_board_factory();
  built_in.backends.emplace("shm", shm_backend_factory());
  MakeFabric make_fabric = make_ucx_fabric();
  if (config.fabric == "mpi") {
    make_fabric = [why](BackendContext&) -> std::unique_ptr<Fabric> {
      throw UsageError("RONDE_FABRIC=mpi " + why + ": leave it unset");
    };
  }
  add_fabric_backends(config, std::move(make_fabric), {}, built_in);
  add_gpu_backends(config, nullptr, built_in);
  return built_in;
}

/// Hosts that RONDE_HOST_ID names may be one machine, so their ranks may try 127.0.0.1.
NetworkOptions network_options(const Config& config) {
  return {.init_timeout_s = config.init_timeout_s,
          .host = config.host_id,
          .offer_loopback = !config.host_id.empty(),
          .one_host = !kHaveUcx,
          .job_key = config.job_key,
          .ports = port_range(config)};
}

constexpr const char* kNoMpiRanks = "needs ranks that MPI has started";

BuiltIn compose_launched(const Config& config, Launch launch) {
  const int rank = launch.rank;
  const LogLevel level = parse_log_level(config.log_level);
  BuiltIn built_in = parts_without_mpi(config, kNoMpiRanks);
  built_in.make_transport = launched_transport_factory(
      {network_options(config), std::move(launch),
       [level, rank](const std::string& text) { Logger(level, rank).warning(text); }});
  return built_in;
}

std::optional<Launch> launch_for(const Config& config, const StartingRanks& ranks) {
  if (ranks.mpi_communicator || !ranks.mpi_ranks.empty()) return std::nullopt;
  return find_launch(process_environment(), config.port, kHaveMpi);
}

}  // namespace

#ifdef RONDE_HAVE_MPI

namespace {

/// Puts the parts together where the program's MPI only brings the ranks together: Note [MPI that
/// Ronde may only start with].
BuiltIn compose_to_meet(const Config& config, const MpiOptions& options, const std::string& why) {
  BuiltIn built_in = parts_without_mpi(config, why);
  built_in.make_transport = [options] { return meet_over_mpi(options); };
  built_in.meets_in_init = true;
  BackendFactory refusing;
  refusing.priority = -1;  // below all that `auto` may choose
  refusing.create = [why](BackendContext&) -> std::unique_ptr<Backend> {
    throw UsageError("RONDE_CPU_BACKEND=mpi " + why);
  };
  built_in.backends.emplace("mpi", std::move(refusing));
  return built_in;
}

}  // namespace

ProgramMpi program_mpi() {
  return mpi_of_program();
}

BuiltIn compose_built_in(const Config& config, const StartingRanks& ranks) {
  if (auto launch = launch_for(config, ranks)) return compose_launched(config, *std::move(launch));
  MpiOptions options{network_options(config)};
  options.ranks = {.communicator = ranks.mpi_communicator, .of_world = ranks.mpi_ranks};
  options.exact = config.exact;
  options.on_program_finalize = ranks.on_program_finalize;
  if (ranks.only_meet) return compose_to_meet(config, options, "is for ronde::init() alone");
  if (const std::string& level = ranks.mpi.low_level; !level.empty()) {
    return compose_to_meet(
        config, options,
        "needs MPI_THREAD_MULTIPLE, but this program initialised MPI with " + level);
  }
  BuiltIn built_in;
  built_in.make_transport = mpi_transport_factory(options);
  built_in.hanging_start = [watch = options.finalize_watch] { return watch->lost(); };
  built_in.make_board = shm_board_factory();
  built_in.backends.emplace("mpi", mpi_backend_factory(options));
  built_in.backends.emplace("shm", shm_backend_factory());
  add_fabric_backends(config,
                      config.fabric == "ucx" ? make_ucx_fabric() : mpi_fabric_maker(options),
                      mpi_fabric_maker_of_set(options), built_in);
  add_gpu_backends(config, &options, built_in);
  return built_in;
}

#else

ProgramMpi program_mpi() {
  return {};
}

BuiltIn compose_built_in(const Config& config, const StartingRanks& ranks) {
  if (auto launch = launch_for(config, ranks)) return compose_launched(config, *std::move(launch));
  BuiltIn built_in = compose_without_launcher(config, KeyValueStart());  // of one rank
  const bool chooses = ranks.mpi_communicator || !ranks.mpi_ranks.empty();
  built_in.make_transport = [make = std::move(built_in.make_transport), chooses] {
    if (chooses) throw UsageError("ranks of MPI were chosen, but this build of Ronde has no MPI");
    if (const std::string variable = foreign_launcher(process_environment()); !variable.empty()) {
      throw UsageError(
          "the launcher started several ranks (" + variable +
          "), but this build of Ronde has no MPI, so that every rank would train alone. "
          "Build it with RONDE_WITH_MPI=ON, start it by torchrun or 'srun --mpi=none', or start a "
          "single process");
    }
    return make();
  };
  return built_in;
}

#endif

std::vector<LinkedLibrary> linked_libraries() {
  std::vector<LinkedLibrary> libraries;
#ifdef RONDE_HAVE_MPI
  libraries.push_back({"MPI", mpi_library_version()});
#endif
#ifdef RONDE_HAVE_UCX
  const std::string problem = ucx_problem();
  libraries.push_back({"UCX", problem.empty() ? ucx_version() : problem});
#endif
  return libraries;
}

int feature_version(std::string_view feature, const vendor::SymbolLookup& gpu_libraries) {
#ifdef RONDE_HAVE_MPI
  for (const char* const of_mpi : {"mpi", "hierarchical", "mpi_communicator"}) {
    if (feature == of_mpi) return 1;
  }
#endif
#ifdef RONDE_HAVE_UCX
  if (feature == "ucx" || feature == "hierarchical") return ucx_problem().empty() ? 1 : 0;
#endif
  if (feature == "cuda" || feature == "nccl") return gpu_feature_version(feature, gpu_libraries);
  return feature == "shm" || feature == "key_value" || feature == "streams" ? 1 : 0;
}

BuiltIn compose_without_launcher(const Config& config, const KeyValueStart& start) {
  BuiltIn built_in = parts_without_mpi(config, kNoMpiRanks);
  const auto calls = std::make_shared<KeyValueCalls>();
  built_in.make_transport = key_value_transport_factory({network_options(config), start, calls});
  built_in.hanging_start = [calls] { return calls->hanging(); };
  return built_in;
}

BuiltIn compose_met(const Config& config, const MetRanks& ranks) {
  BuiltIn built_in = parts_without_mpi(config, kNoMpiRanks);
  built_in.meets_in_init = true;
  built_in.make_transport = [options = network_options(config), ranks] {
    return net::connect_ranks("world", {ranks.rank, ranks.size}, options,
                              net::Clock::now() + milliseconds_of(options.init_timeout_s),
                              ranks.exchange);
  };
  return built_in;
}

}  // namespace ronde
