// SPDX-License-Identifier: Apache-2.0
// One lock guards every call of MPI, as Ronde asks for MPI_THREAD_SERIALIZED. Transport and backend
// join and leave; the last to leave finalises MPI if Ronde initialised it and no rank is lost.
#include "backends/mpi/mpi_environment.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>
#include <thread>

#include "backends/launcher.h"
#include "backends/vendor/rdma.h"
#include "core/src/base/fingerprint.h"
#include "core/src/base/rank_list.h"
#include "ronde/error.h"

namespace ronde::mpi {

std::string failure_text(const MpiApi& api, const char* call, int code) {
  std::array<char, MPI_MAX_ERROR_STRING + 1> native = {};
  int length = 0;
  int is_initialized = 0;  // before MPI_Init, Open MPI would end the process
  std::string text = std::string(call) + " failed with code " + std::to_string(code);
  if (api.initialized(&is_initialized) == MPI_SUCCESS && is_initialized != 0 &&
      api.error_string(code, native.data(), &length) == MPI_SUCCESS && length > 0) {
    text += ": " + std::string(native.data(), static_cast<std::size_t>(length));
  }
  return text;
}

namespace {

/// Returns the first line of a version text, with single blanks: "MPICH Version: 4.0.2".
std::string first_line(const std::string& text) {
  std::string line = text.substr(0, text.find('\n'));
  std::replace(line.begin(), line.end(), '\t', ' ');
  const auto both_blank = [](char a, char b) { return a == ' ' && b == ' '; };
  line.erase(std::unique(line.begin(), line.end(), both_blank), line.end());
  return line;
}

// Note [UCX and the death of a peer]
// MPICH and Open MPI may run on UCX, whose "cma" transport (process_vm_readv) ends the whole
// process when the peer dies whose memory it is copying from. With its other transports within a
// host, an operation merely never finishes, and Ronde can report who died. With cma alone turned
// off, UCX 1.13 moves large messages of one host over "tcp", and then MPI_Finalize of MPICH 4.0.2
// hangs with three or more ranks. So on one host both are turned off. Across hosts tcp may be the
// only transport, so nothing is turned off. Ronde does not override the user's choice.

// Note [Messages of MPI between hosts]
// Before it sends a message of more than some KiB, UCX asks the receiver (a rendezvous), so both
// ranks have to run once more while the link is idle. With RDMA that saves a copy; over TCP it
// gains nothing, so messages of the algorithms leave at once. A late rank buffers what has arrived,
// which is no more than the rounds in flight. Larger messages, such as a program's own, still use
// the rendezvous.
constexpr const char* kAskFrom = "1m";

/// "MPI_THREAD_FUNNELED".
std::string level_name(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE:
      return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED:
      return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED:
      return "MPI_THREAD_SERIALIZED";
    case MPI_THREAD_MULTIPLE:
      return "MPI_THREAD_MULTIPLE";
    default:
      return "thread level " + std::to_string(level);
  }
}

/// Whether all ranks run on this host; empty if the launcher does not say.
std::optional<bool> launched_on_one_host(const EnvironmentLookup& variables) {
  // Variables of launchers: (ranks of this host, all ranks).
  constexpr std::pair<const char*, const char*> kPairs[] = {
      {"MPI_LOCALNRANKS", "PMI_SIZE"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"}};
  for (const auto& [of_host, of_all] : kPairs) {
    const std::optional<std::string> here = variables(of_host), all = variables(of_all);
    if (here && all) return here == all;
  }
  return std::nullopt;
}

}  // namespace

std::pair<const char*, const char*> variable_for_ucx(const EnvironmentLookup& variables,
                                                     bool has_rdma) {
  const std::optional<bool> on_one_host = launched_on_one_host(variables);
  if (!on_one_host) return {};
  if (*on_one_host) return {"UCX_TLS", kMpiTransportsOfUcx};
  return has_rdma ? std::pair<const char*, const char*>() : std::pair("UCX_RNDV_THRESH", kAskFrom);
}

std::shared_ptr<MpiEnvironment> MpiEnvironment::of_process() {
  static auto* const environment = new std::shared_ptr<MpiEnvironment>(
      std::make_shared<MpiEnvironment>(MpiApi{}, process_environment()));
  return *environment;
}

void MpiEnvironment::join(const MpiRanks& ranks, MpiUse use) {
  const std::lock_guard lock(mutex_);
  int is_finalized = 0;
  check("MPI_Finalized", api_.finalized(&is_finalized));
  if (is_finalized != 0) {
    throw UsageError(
        "MPI is finalised in this process, so Ronde cannot be initialised (again): MPI starts once "
        "a process. Call ronde::init() once, and ronde::shutdown() or MPI_Finalize() at the end.");
  }
  int is_initialized = 0;
  check("MPI_Initialized", api_.initialized(&is_initialized));
  if (is_initialized == 0) {
    if (!ranks.are_all()) {
      throw UsageError(
          "ranks were chosen by a communicator or by a list, but MPI is not initialised: call "
          "MPI_Init() or MPI_Init_thread() on every rank of the job before ronde::init()");
    }
    initialize();
  }
  if (!owns_mpi_) {
    check_level_of_program(use);
  } else if (provided_ < MPI_THREAD_SERIALIZED) {
    throw UsageError(
        "Ronde calls MPI from a thread of its own and needs MPI_THREAD_SERIALIZED, but "
        "this MPI library provides only " +
        level_name(provided_) + " (" + library_version() + "); use one built with thread support");
  }
  if (use == MpiUse::Always) watch_finalize();
  if (members_ == 0) {
    if (ranks.communicator) {
      use_communicator(*ranks.communicator);
    } else if (!ranks.of_world.empty()) {
      use_ranks_of_world(ranks.of_world);
    } else {
      use_all_ranks();
    }
    may_finalize_ = true;
  }
  ++members_;
}

void MpiEnvironment::use_all_ranks() {
  ranks_ = MPI_COMM_WORLD;
  check("MPI_Comm_rank", api_.comm_rank(ranks_, &rank_));
  check("MPI_Comm_size", api_.comm_size(ranks_, &size_));
  if (size_ == 1) refuse_foreign_launcher();
}

/// While it lives, MPI returns the errors of calls without a valid communicator. By default such
/// errors end the process.
class MpiEnvironment::ErrorsReturned {
 public:
  explicit ErrorsReturned(const MpiApi& api) : lock_(mutex_), api_(api) {
    for (Saved& each : saved_) {
      if (api_.comm_get_errhandler(each.communicator, &each.handler) != MPI_SUCCESS) continue;
      api_.comm_set_errhandler(each.communicator, MPI_ERRORS_RETURN);
    }
  }
  ~ErrorsReturned() {
    for (Saved& each : saved_) {
      if (each.handler == MPI_ERRHANDLER_NULL) continue;
      api_.comm_set_errhandler(each.communicator, each.handler);
      api_.errhandler_free(&each.handler);
    }
  }
  ErrorsReturned(const ErrorsReturned&) = delete;
  ErrorsReturned& operator=(const ErrorsReturned&) = delete;

 private:
  struct Saved {
    MPI_Comm communicator;
    MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  };

  static inline std::mutex mutex_;  // no other thread may set a handler between save and restore
  const std::lock_guard<std::mutex> lock_;
  const MpiApi& api_;
  std::array<Saved, 2> saved_ = {Saved{MPI_COMM_WORLD}, Saved{MPI_COMM_SELF}};
};

void MpiEnvironment::use_communicator(int handle) {
  const ErrorsReturned errors_returned(api_);
  const std::string name = "the MPI communicator with the Fortran handle " + std::to_string(handle);
  const MPI_Comm communicator = api_.comm_f2c(handle);
  if (communicator == MPI_COMM_NULL) {
    throw UsageError(name + " is MPI_COMM_NULL: only its ranks can be initialised with it");
  }
  int is_inter = 0;
  const int code = api_.comm_test_inter(communicator, &is_inter);
  if (code != MPI_SUCCESS) {
    throw UsageError(name + " cannot be used: " + failure_text(api_, "MPI_Comm_test_inter", code));
  }
  if (is_inter != 0) {
    throw UsageError(name + " is an inter-communicator: merge it by MPI_Intercomm_merge()");
  }
  check("MPI_Comm_rank", api_.comm_rank(communicator, &rank_));
  check("MPI_Comm_size", api_.comm_size(communicator, &size_));
  ranks_ = communicator;
}

void MpiEnvironment::use_ranks_of_world(const std::vector<int>& ranks) {
  // The tag cannot clash with messages of the program: MPI gives the call a context of its own.
  constexpr std::uint64_t kTags = 32767;  // every MPI has so many
  const int tag = static_cast<int>(detail::fingerprint(list_ranks(ranks)) % kTags);
  int world_rank = 0;
  int world_size = 0;
  check("MPI_Comm_rank", api_.comm_rank(MPI_COMM_WORLD, &world_rank));
  check("MPI_Comm_size", api_.comm_size(MPI_COMM_WORLD, &world_size));
  const std::string who = "rank " + std::to_string(world_rank) + " of MPI_COMM_WORLD";
  const std::set<int> distinct(ranks.begin(), ranks.end());
  if (*distinct.begin() < 0 || *distinct.rbegin() >= world_size ||
      distinct.size() != ranks.size()) {
    throw UsageError(who + ": the ranks to start with have to be different ones of 0 to " +
                     std::to_string(world_size - 1));
  }
  if (!distinct.contains(world_rank)) {
    throw UsageError(who + " is not among the ranks to start with: they alone call init");
  }
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group chosen = MPI_GROUP_NULL;
  MPI_Comm communicator = MPI_COMM_NULL;
  check("MPI_Comm_group", api_.comm_group(MPI_COMM_WORLD, &world));
  check("MPI_Group_incl",
        api_.group_incl(world, static_cast<int>(ranks.size()), ranks.data(), &chosen));
  check("MPI_Comm_create_group",
        api_.comm_create_group(MPI_COMM_WORLD, chosen, tag, &communicator));
  check("MPI_Group_free", api_.group_free(&chosen));
  check("MPI_Group_free", api_.group_free(&world));
  check("MPI_Comm_rank", api_.comm_rank(communicator, &rank_));
  check("MPI_Comm_size", api_.comm_size(communicator, &size_));
  ranks_ = communicator;
  owns_ranks_ = true;
}

void MpiEnvironment::initialize() {
  constexpr int kKeepWhatIsSet = 0;
  const auto [name, value] = variable_for_ucx(variables_, vendor::has_rdma_devices());
  if (name != nullptr) setenv(name, value, kKeepWhatIsSet);
  check("MPI_Init_thread", api_.init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided_));
  owns_mpi_ = true;
  // MPI raises errors that belong to no communicator of ours here; by default they end the process.
  check("MPI_Comm_set_errhandler", api_.comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  check("MPI_Comm_set_errhandler", api_.comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
}

int MpiEnvironment::level_of_program() const {
  int provided = MPI_THREAD_SINGLE;
  check("MPI_Query_thread", api_.query_thread(&provided));
  return provided;
}

void MpiEnvironment::check_level_of_program(MpiUse use) const {
  const int level = level_of_program();
  if (level >= MPI_THREAD_MULTIPLE) return;
  const std::string begin = "this program initialised MPI with " + level_name(level) + ", ";
  if (use == MpiUse::Always) {
    throw UsageError(begin +
                     "but Ronde calls MPI from a thread of its own here. Initialise it by "
                     "MPI_Init_thread(..., MPI_THREAD_MULTIPLE, ...).");
  }
  if (level >= MPI_THREAD_SERIALIZED) return;
  int is_main = 0;
  check("MPI_Is_thread_main", api_.is_thread_main(&is_main));
  if (is_main != 0) return;
  throw UsageError(begin +
                   "which allows calls of MPI on the thread that initialised it alone: call "
                   "ronde::init() on that thread, or initialise MPI by MPI_Init_thread(..., "
                   "MPI_THREAD_MULTIPLE, ...).");
}

ProgramMpi MpiEnvironment::of_program() const {
  // Takes no lock, as a start may hold it for long; MPI allows these calls on any thread.
  if (owns_mpi_) return {};
  int is_initialized = 0;
  int is_finalized = 0;
  check("MPI_Initialized", api_.initialized(&is_initialized));
  check("MPI_Finalized", api_.finalized(&is_finalized));
  if (is_initialized == 0 || is_finalized != 0) return {};
  const int level = level_of_program();
  return {.is_there = true, .low_level = level < MPI_THREAD_MULTIPLE ? level_name(level) : ""};
}

void MpiEnvironment::refuse_foreign_launcher() const {
  const std::string variable = foreign_launcher(variables_);
  if (variable.empty()) return;
  throw UsageError(
      "the launcher says that it started several ranks (" + variable +
      "), but MPI knows of one rank only, this one: every rank would train alone. The program "
      "uses " +
      library_version() +
      ", which this launcher cannot start. Start it with that library's own mpiexec (under Slurm "
      "also srun --mpi=pmi2 or --mpi=pmix, whichever the library supports). To run a single rank "
      "on purpose, use 'mpiexec -n 1' or unset " +
      variable.substr(0, variable.find('=')) + ".");
}

void MpiEnvironment::leave(bool graceful) {
  const std::lock_guard lock(mutex_);
  may_finalize_ = may_finalize_ && graceful;
  if (--members_ > 0) return;
  if (graceful) expect_not_finalized();
  // The other ranks may be gone if this one does not leave gracefully; the communicator then stays.
  if (std::exchange(owns_ranks_, false) && may_finalize_ && !abandoned_) {
    check("MPI_Comm_free", api_.comm_free(&ranks_));
  }
  if (!owns_mpi_ || !may_finalize_ || abandoned_ || program_finalizes_) return;
  // This is the thread that initialised MPI, unless an earlier init failed after that. Its thread
  // is gone then, and finalising on another one is better than not finalising.
  finalizes_ = true;
  check("MPI_Finalize", api_.finalize());
}

/// Note [Finalizing over TCP] in mpi_transport.cc.
bool MpiEnvironment::closing_asks_peers() const {
  const std::lock_guard lock(mutex_);
  return owns_mpi_ && !vendor::has_rdma_devices();
}

void MpiEnvironment::abandon() noexcept {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
}

std::string MpiEnvironment::library_version() const {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING + 1> text = {};
  int length = 0;
  check("MPI_Get_library_version", api_.get_library_version(text.data(), &length));
  return first_line(text.data());  // Open MPI counts the NUL, too
}

MPI_Comm MpiEnvironment::duplicate(Clock::time_point deadline) {
  struct Pending {
    MPI_Comm communicator = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  const auto start = Clock::now();
  const auto pending = std::make_shared<Pending>();
  call("MPI_Comm_idup", api_.comm_idup, ranks_, &pending->communicator, &pending->request);
  if (!wait(pending->request, deadline)) {
    keep_until_exit(pending);
    abandon();
    fail_waiting("duplicate the MPI communicator",
                 std::chrono::round<std::chrono::seconds>(Clock::now() - start));
  }
  call("MPI_Comm_set_errhandler", api_.comm_set_errhandler, pending->communicator,
       MPI_ERRORS_RETURN);
  return pending->communicator;
}

void MpiEnvironment::free(MPI_Comm& communicator) {
  if (communicator != MPI_COMM_NULL) call("MPI_Comm_free", api_.comm_free, &communicator);
}

void MpiEnvironment::set_message_communicator(MPI_Comm communicator) {
  const std::lock_guard lock(mutex_);
  messages_ = communicator;
}

MPI_Comm MpiEnvironment::message_communicator() const {
  const std::lock_guard lock(mutex_);
  return messages_;
}

int MpiEnvironment::largest_tag() const {
  const std::lock_guard lock(mutex_);
  constexpr int kGuaranteed = 32767;  // by the standard, 8.1.2
  int* value = nullptr;
  int found = 0;
  check("MPI_Comm_get_attr", api_.comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &found));
  return found != 0 ? *value : kGuaranteed;
}

bool MpiEnvironment::test(MPI_Request& request) {
  int finished = 0;
  call("MPI_Test", api_.test, &request, &finished, MPI_STATUS_IGNORE);
  return finished != 0;
}

std::vector<MpiEnvironment::Finished> MpiEnvironment::test_some(std::span<MPI_Request> requests) {
  const std::lock_guard lock(mutex_);
  expect_not_finalized();
  std::vector<int> indexes(requests.size());
  std::vector<MPI_Status> statuses(requests.size());
  int count = 0;
  const int code = api_.testsome(static_cast<int>(requests.size()), requests.data(), &count,
                                 indexes.data(), statuses.data());
  if (code != MPI_ERR_IN_STATUS) check("MPI_Testsome", code);
  std::vector<Finished> all(count == MPI_UNDEFINED ? 0 : static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].index = static_cast<std::size_t>(indexes[i]);
    const int error = code == MPI_ERR_IN_STATUS ? statuses[i].MPI_ERROR : MPI_SUCCESS;
    if (error != MPI_SUCCESS) {
      all[i].error = failure_text(api_, "MPI_Testsome", error);
    } else {
      api_.get_count(&statuses[i], MPI_BYTE, &all[i].received_bytes);
    }
  }
  return all;
}

void MpiEnvironment::progress(MPI_Comm communicator) {
  int found = 0;
  call("MPI_Iprobe", api_.iprobe, MPI_ANY_SOURCE, MPI_ANY_TAG, communicator, &found,
       MPI_STATUS_IGNORE);
}

bool MpiEnvironment::wait(MPI_Request& request, Clock::time_point deadline) {
  constexpr std::chrono::microseconds kLongestPause{1000};
  std::chrono::microseconds pause{10};
  while (!test(request)) {
    if (Clock::now() >= deadline) return false;
    // MPI offers no way to block without spinning.
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  return true;
}

void MpiEnvironment::fail_waiting(const std::string& what, std::chrono::seconds waited) const {
  throw GroupError(-1, "rank " + std::to_string(rank_) + " waited " +
                           std::to_string(waited.count()) + " s for all " + std::to_string(size_) +
                           " ranks to " + what +
                           ": at least one has not called ronde::init(), hangs or died");
}

void MpiEnvironment::check(const char* name, int code) const {
  if (code != MPI_SUCCESS) {
    throw Error("rank " + std::to_string(rank_) + ": " + failure_text(api_, name, code));
  }
}

/// Prevents calls of MPI after the program's MPI_Finalize: most of them end the process, and one
/// that is in progress crashes.
void MpiEnvironment::watch_finalize() {
  if (std::exchange(watches_finalize_, true)) return;
  const auto on_finalize = [](MPI_Comm, int, void* value, void*) {
    const std::unique_ptr<std::weak_ptr<MpiEnvironment>> self(
        static_cast<std::weak_ptr<MpiEnvironment>*>(value));
    if (const auto environment = self->lock()) environment->handle_finalize();
    return MPI_SUCCESS;
  };
  auto self = std::make_unique<std::weak_ptr<MpiEnvironment>>(weak_from_this());
  check("MPI_Comm_set_attr", api_.on_finalize(on_finalize, self.get()));
  static_cast<void>(self.release());  // its only owner now is MPI
}

void MpiEnvironment::handle_finalize() {
  if (finalizes_) return;
  std::unique_lock lock(mutex_);
  program_finalizes_ = true;
  if (const std::function<void()> shut_down = std::exchange(on_program_finalize_, nullptr)) {
    lock.unlock();
    shut_down();
    lock.lock();  // waits for a call in progress
  }
  program_finalized_ = true;
}

void MpiEnvironment::on_program_finalize(std::function<void()> function) {
  const std::lock_guard lock(mutex_);
  on_program_finalize_ = std::move(function);
}

void MpiEnvironment::expect_not_finalized() const {
  if (!program_finalized_) return;
  throw Error("rank " + std::to_string(rank_) +
              ": the program has called MPI_Finalize() before ronde::shutdown(): call it after, or "
              "not at all where it does not call MPI_Init_thread()");
}

MpiMembership::MpiMembership(std::shared_ptr<MpiEnvironment> environment, const MpiRanks& ranks,
                             MpiUse use)
    : environment_(std::move(environment)) {
  environment_->join(ranks, use);
  joined_ = true;
}

MpiMembership::~MpiMembership() {
  if (joined_) environment_->leave(false);  // calls no MPI
}

void MpiMembership::leave(bool graceful) {
  if (std::exchange(joined_, false)) environment_->leave(graceful);
}

void keep_until_exit(std::shared_ptr<void> memory) {
  static std::mutex mutex;
  // Reachable on purpose, and never destroyed, as MPI may write to it until the process ends.
  static auto* const graveyard = new std::vector<std::shared_ptr<void>>();
  const std::lock_guard lock(mutex);
  graveyard->push_back(std::move(memory));
}

}  // namespace ronde::mpi
