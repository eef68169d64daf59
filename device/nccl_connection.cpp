// SPDX-License-Identifier: Apache-2.0
#include "device/nccl_connection.hpp"

#include <chrono>
#include <future>
#include <memory>
#include <utility>

#include "device/check.hpp"

namespace tokenview {
namespace {

using namespace std::chrono_literals;

std::string in_words(ncclResult_t status, ncclComm_t comm) {
  const char* const last = ncclGetLastError(comm);
  return text(ncclGetErrorString(status),
              last == nullptr || *last == '\0' ? "" : text(" (", last, ')'));
}

/// Throws DeviceError when `status`, what `call` returned, is not success.
void require(ncclResult_t status, const char* call) {
  if (status != ncclSuccess) throw DeviceError(text(call, ": ", in_words(status, nullptr)));
}

/// The communicator of all ranks. It comes into being on a thread of its own, which is left behind
/// when another rank fails meanwhile: there is no handle yet to abort.
ncclComm_t connect(Transport& transport, int device) {
  ncclUniqueId id{};
  if (transport.rank() == 0) require(ncclGetUniqueId(&id), "ncclGetUniqueId");
  const Bytes bytes = transport.broadcast(transport.world(), 0, ByteWriter().add(id).take());
  id = ByteReader(bytes).read<ncclUniqueId>();
  struct Result {
    ncclComm_t comm = nullptr;
    std::string problem;
  };
  std::packaged_task<Result()> task(
      [id, device, rank = int(transport.rank()), size = int(transport.size())] {
        Result result;
        try {
          check(cudaSetDevice(device), "cudaSetDevice");
          require(ncclCommInitRank(&result.comm, size, id, rank), "ncclCommInitRank");
        } catch (const Error& error) {
          result.problem = error.what();
        }
        return result;
      });
  std::future<Result> arriving = task.get_future();
  std::thread(std::move(task)).detach();
  while (arriving.wait_for(10ms) != std::future_status::ready) transport.throw_failure();
  const Result result = arriving.get();
  if (!result.problem.empty()) throw DeviceError(result.problem);
  return result.comm;
}

}  // namespace

NcclConnection::NcclConnection(Transport& transport, int device)
    : transport_(transport), device_(device), world_(connect(transport, device)) {}

NcclConnection::~NcclConnection() {
  if (is_aborted_) return;
  for (const auto& [cut, comm] : groups_) ncclCommDestroy(comm);
  ncclCommDestroy(world_);
}

ncclComm_t NcclConnection::group(const std::string& cut, const std::vector<std::int64_t>& members) {
  if (members.size() == 1) return nullptr;
  if (std::ssize(members) == transport_.size()) return world_;
  const auto known = groups_.find(cut);
  if (known != groups_.end()) return known->second;
  ncclComm_t comm = nullptr;
  call(
      [&] {
        const auto status =
            ncclCommSplit(world_, int(members.front()), int(transport_.rank()), &comm, nullptr);
        if (status == ncclSuccess) groups_.emplace(cut, comm);
        return status;
      },
      [] { return std::string("ncclCommSplit"); });
  return comm;
}

void NcclConnection::abort(const std::string& reason) {
  if (is_aborted_) return;
  reason_ = reason;
  is_aborted_ = true;
  // Who holds the lock for long waits inside of NCCL for another rank; to abort is what ends that.
  const std::unique_lock lock(mutex_, 2s);
  cudaSetDevice(device_);
  for (const auto& [cut, comm] : groups_) ncclCommAbort(comm);
  ncclCommAbort(world_);
}

void NcclConnection::fail(ncclResult_t status, const std::string& where) {
  transport_.throw_failure();
  throw CommError(text("NCCL: ", where, ": ", is_aborted_ ? reason_ : in_words(status, world_)));
}

std::string NcclConnection::asynchronous_error() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return {};
  const auto error_of = [](ncclComm_t comm) -> std::string {
    ncclResult_t status = ncclSuccess;
    if (ncclCommGetAsyncError(comm, &status) != ncclSuccess || status == ncclSuccess ||
        status == ncclInProgress)
      return {};
    return in_words(status, comm);
  };
  std::string error = error_of(world_);
  for (const auto& [cut, comm] : groups_)
    if (error.empty()) error = error_of(comm);
  return error;
}

NcclConnection::Watch::Watch(NcclConnection& connection)
    : connection_(connection), thread_([this] { look(); }) {}

NcclConnection::Watch::~Watch() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  stops_.notify_one();
  thread_.join();
}

void NcclConnection::Watch::look() {
  std::unique_lock lock(mutex_);
  while (!stops_.wait_for(lock, 10ms, [&] { return is_stopping_; })) {
    if (const auto failure = connection_.transport_.failure())
      return connection_.abort(text("rank ", failure->rank, ": ", failure->problem));
    if (const std::string error = connection_.asynchronous_error(); !error.empty())
      return connection_.abort(error);
  }
}

}  // namespace tokenview
