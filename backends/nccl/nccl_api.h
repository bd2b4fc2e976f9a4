// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <memory>
#include <string>

#include "backends/gpu/driver/driver_api.h"
#include "backends/vendor/api_table.h"
#include "ronde/error.h"

namespace ronde::nccl {

constexpr const char* kLibrary = "libnccl.so.2";

// Declarations of nccl.h. tests/gpu/declarations_test.cc compares them with those of the installed
// NCCL.

using Result = int;  ///< ncclResult_t
constexpr Result kSuccess = 0;
constexpr Result kInProgress = 7;

using DataTypeNumber = int;  ///< ncclDataType_t
constexpr DataTypeNumber kInt8 = 0;
constexpr DataTypeNumber kUint8 = 1;
constexpr DataTypeNumber kInt32 = 2;
constexpr DataTypeNumber kInt64 = 4;
constexpr DataTypeNumber kFloat16 = 6;
constexpr DataTypeNumber kFloat32 = 7;
constexpr DataTypeNumber kFloat64 = 8;
constexpr DataTypeNumber kBfloat16 = 9;

using ReductionNumber = int;  ///< ncclRedOp_t
constexpr ReductionNumber kSum = 0;
constexpr ReductionNumber kProduct = 1;
constexpr ReductionNumber kMax = 2;
constexpr ReductionNumber kMin = 3;
constexpr ReductionNumber kAverage = 4;

constexpr int kSymmetricWindow = 1;  ///< NCCL_WIN_COLL_SYMMETRIC

struct WindowTag;
using Window = WindowTag*;
struct CommunicatorTag;
using Communicator = CommunicatorTag*;

struct UniqueId {
  std::array<char, 128> bytes;
};

constexpr int kUndefined = INT_MIN;  ///< NCCL_CONFIG_UNDEF_INT

/// ncclConfig_t of NCCL 2.19. Newer ones have more fields, which have defaults beyond `size`.
struct CommunicatorConfig {
  std::size_t size = sizeof(CommunicatorConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21900;
  int blocking = kUndefined;  ///< 1: calls return once they have ended
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
};

/// The functions of NCCL that Ronde calls.
///
/// Thread-safety: NCCL's: one thread at a time uses a communicator; any may call abort() and
/// async_error().
struct NcclApi : vendor::ApiTable {
  template <typename... Arguments>
  using Call = vendor::Entry<Result, Arguments...>;
  using Stream = cuda::StreamHandle;

  Call<int*> get_version{*this, "ncclGetVersion"};
  vendor::Entry<const char*, Result> error_string{*this, "ncclGetErrorString"};
  vendor::Entry<const char*, Communicator> last_error{*this, "ncclGetLastError"};

  Call<UniqueId*> get_unique_id{*this, "ncclGetUniqueId"};
  Call<Communicator*, int, UniqueId, int, CommunicatorConfig*> init_rank{*this,
                                                                         "ncclCommInitRankConfig"};
  Call<Communicator> finalize{*this, "ncclCommFinalize"};
  Call<Communicator> destroy{*this, "ncclCommDestroy"};
  Call<Communicator> abort{*this, "ncclCommAbort"};
  Call<Communicator, Result*> async_error{*this, "ncclCommGetAsyncError"};

  Call<> group_start{*this, "ncclGroupStart"};
  Call<> group_end{*this, "ncclGroupEnd"};
  Call<const void*, void*, std::size_t, DataTypeNumber, ReductionNumber, Communicator, Stream>
      all_reduce{*this, "ncclAllReduce"};
  Call<const void*, void*, std::size_t, DataTypeNumber, ReductionNumber, Communicator, Stream>
      reduce_scatter{*this, "ncclReduceScatter"};
  Call<const void*, void*, std::size_t, DataTypeNumber, int, Communicator, Stream> broadcast{
      *this, "ncclBroadcast"};
  Call<const void*, void*, std::size_t, DataTypeNumber, Communicator, Stream> all_gather{
      *this, "ncclAllGather"};
  Call<const void*, std::size_t, DataTypeNumber, int, Communicator, Stream> send{*this, "ncclSend"};
  Call<void*, std::size_t, DataTypeNumber, int, Communicator, Stream> recv{*this, "ncclRecv"};

  Call<void**, std::size_t> allocate{*this, "ncclMemAlloc"};
  Call<void*> free{*this, "ncclMemFree"};
  // NCCL 2.27 and newer:
  Call<Communicator, void*, std::size_t, Window*, int> register_window{
      *this, "ncclCommWindowRegister", vendor::Need::Optional};
  Call<Communicator, Window> deregister_window{*this, "ncclCommWindowDeregister",
                                               vendor::Need::Optional};
  bool has_windows() const noexcept { return register_window && deregister_window; }
};

/// A failed call of NCCL.
class NcclError : public Error {
 public:
  /// `doing`: as in cuda::DriverError. `communicator`: its last error is quoted; may be null.
  NcclError(const NcclApi& api, const char* symbol, Result result, Communicator communicator,
            const std::string& doing);
};

/// The oldest supported version, as of ncclGetVersion().
constexpr int kOldest = 21900;
/// The oldest one in which ranks may share a GPU (NCCL_MULTI_RANK_GPU_ENABLE).
constexpr int kOldestWithSharedGpus = 23000;

/// "2.28.9" of 22809, and "2.8.4" of 2804: versions up to 2.8 have four digits.
std::string version_text(int version);

/// The NCCL of this process.
struct LoadedNccl {
  std::shared_ptr<const NcclApi> api;  ///< null: it cannot be used
  bool was_found = false;
  int version = 0;      ///< as of ncclGetVersion(), or 0
  std::string problem;  ///< why it cannot be used, and what to do; else empty
};

/// Loads it and asks for its version. `library`: its path, or a name that the loader finds.
LoadedNccl load_nccl(const vendor::SymbolLookup& lookup, const std::string& library = kLibrary);

}  // namespace ronde::nccl
