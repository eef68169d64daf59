// SPDX-License-Identifier: Apache-2.0
#include "comm_sim/transport/tcp_transport.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

namespace tokenview {
namespace {

using Clock = std::chrono::steady_clock;

std::string system_error() { return std::strerror(errno); }

/// An open file descriptor, closed with its scope.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

  /// False when the other end is gone.
  bool write(const void* data, std::size_t size) const {
    const char* at = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t done = ::send(fd_, at, size, MSG_NOSIGNAL);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) return false;
      at += done;
      size -= std::size_t(done);
    }
    return true;
  }
  /// False at the end of the stream, or when read_limit() has passed.
  bool read(void* data, std::size_t size) const {
    char* at = static_cast<char*>(data);
    while (size > 0) {
      const ssize_t done = ::recv(fd_, at, size, 0);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) return false;
      at += done;
      size -= std::size_t(done);
    }
    return true;
  }
  void read_limit(Transport::Seconds limit) const {
    timeval time{};
    time.tv_sec = time_t(limit.count());
    time.tv_usec = suseconds_t((limit.count() - double(time.tv_sec)) * 1e6);
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
  }
  void send_at_once() const {
    const int yes = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  }

 private:
  int fd_;
};

/// What a rank says first, and what rank 0 answers when all have come, or at once when it refuses.
struct Hello {
  std::array<char, 16> magic{"tokenview-ranks"};
  std::int64_t rank = 0, size = 0;
  bool is_ours() const { return magic == Hello().magic; }
};
struct Welcome {
  std::array<char, 16> magic{"tokenview-ranks"};
  std::array<char, 112> refusal{};  // empty: welcome
};

struct FrameHead {
  std::uint32_t from, to, run, kind;
  std::uint64_t bytes;
};

struct Addresses {
  explicit Addresses(const MeetingPlace& place) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    const int status =
        getaddrinfo(place.host.c_str(), std::to_string(place.port).c_str(), &hints, &first);
    if (status != 0)
      throw CommError(text("MASTER_ADDR \"", place.host, "\": ", gai_strerror(status)));
  }
  ~Addresses() { freeaddrinfo(first); }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;

  addrinfo* first = nullptr;
};

std::string in_words(const MeetingPlace& place) { return text(place.host, ':', place.port); }

/// The address itself where it is of this machine alone; else any: a machine may know its own name
/// by another address than the others do.
void open_to_others(sockaddr* address) {
  if (address->sa_family == AF_INET) {
    auto& v4 = *reinterpret_cast<sockaddr_in*>(address);
    if (v4.sin_addr.s_addr != htonl(INADDR_LOOPBACK)) v4.sin_addr.s_addr = INADDR_ANY;
  } else if (address->sa_family == AF_INET6) {
    auto& v6 = *reinterpret_cast<sockaddr_in6*>(address);
    if (!IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr)) v6.sin6_addr = in6addr_any;
  }
}

Socket listen_at(const MeetingPlace& place) {
  const Addresses addresses(place);
  std::string problem;
  for (const addrinfo* at = addresses.first; at != nullptr; at = at->ai_next) {
    open_to_others(at->ai_addr);
    Socket socket(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int yes = 1;
    setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (bind(socket.fd(), at->ai_addr, at->ai_addrlen) == 0 && listen(socket.fd(), 128) == 0)
      return socket;
    problem = system_error();
  }
  throw CommError(
      text("rank 0 cannot listen at ", in_words(place), " (MASTER_ADDR, MASTER_PORT): ", problem));
}

/// TCP connects a socket with itself where nobody listens and its own port happens to be the one.
bool meets_itself(const Socket& socket) {
  sockaddr_storage mine{}, other{};
  socklen_t mine_size = sizeof(mine), other_size = sizeof(other);
  return getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&mine), &mine_size) == 0 &&
         getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&other), &other_size) == 0 &&
         mine_size == other_size && std::memcmp(&mine, &other, mine_size) == 0;
}

Socket connect_to(const MeetingPlace& place, Transport::Seconds patience) {
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(patience);
  const Addresses addresses(place);
  std::string problem;
  do {
    for (const addrinfo* at = addresses.first; at != nullptr; at = at->ai_next) {
      Socket socket(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (connect(socket.fd(), at->ai_addr, at->ai_addrlen) == 0 && !meets_itself(socket))
        return socket;
      problem = system_error();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  } while (Clock::now() < until);
  throw CommError(text("rank 0 is not at ", in_words(place), " (MASTER_ADDR, MASTER_PORT) within ",
                       patience.count(), " s: ", problem));
}

std::string missing_ranks(const std::vector<Socket>& sockets) {
  std::string ranks;
  for (std::size_t rank = 1; rank < sockets.size(); ++rank)
    if (!sockets[rank].is_open()) ranks += text(ranks.empty() ? "" : ", ", rank);
  return ranks;
}

/// Of rank 0: waits for every other rank at `place`. [size], the first one closed.
std::vector<Socket> wait_for_all(std::int64_t size, const MeetingPlace& place,
                                 Transport::Seconds patience) {
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(patience);
  const Socket listener = listen_at(place);
  std::vector<Socket> sockets(static_cast<std::size_t>(size));
  for (std::int64_t here = 1; here < size;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd waiting{listener.fd(), POLLIN, 0};
    if (left <= 0 || poll(&waiting, 1, int(left)) == 0)
      throw CommError(text("rank ", missing_ranks(sockets), " of ", size, " did not come to ",
                           in_words(place), " within ", patience.count(), " s"));
    Socket socket(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.is_open()) continue;
    socket.read_limit(Transport::Seconds(2));  // whoever says nothing is none of ours
    Hello hello;
    if (!socket.read(&hello, sizeof(hello)) || !hello.is_ours()) continue;
    std::string refusal;
    if (hello.size != size)
      refusal =
          text("WORLD_SIZE is ", hello.size, " on rank ", hello.rank, " and ", size, " on rank 0");
    else if (hello.rank < 1 || hello.rank >= size || sockets[std::size_t(hello.rank)].is_open())
      refusal = text("there are two ranks ", hello.rank);
    if (!refusal.empty()) {
      Welcome answer;
      refusal.copy(answer.refusal.data(), answer.refusal.size() - 1);
      socket.write(&answer, sizeof(answer));
      throw CommError(text("at ", in_words(place), ": ", refusal));
    }
    socket.read_limit(Transport::Seconds(0));
    sockets[std::size_t(hello.rank)] = std::move(socket);
    ++here;
  }
  const Welcome welcome;
  for (std::size_t rank = 1; rank < sockets.size(); ++rank) {
    sockets[rank].send_at_once();
    sockets[rank].write(&welcome, sizeof(welcome));
  }
  return sockets;
}

/// Of another rank: its connection to rank 0.
std::vector<Socket> join_rank_0(std::int64_t rank, std::int64_t size, const MeetingPlace& place,
                                Transport::Seconds patience) {
  std::vector<Socket> sockets;
  const Socket& socket = sockets.emplace_back(connect_to(place, patience));
  socket.send_at_once();
  socket.read_limit(patience + Transport::Seconds(1));  // rank 0 is the first to lose patience
  Hello hello;
  hello.rank = rank;
  hello.size = size;
  Welcome answer;
  answer.magic = {};
  if (!socket.write(&hello, sizeof(hello)) || !socket.read(&answer, sizeof(answer)))
    throw CommError(text("rank 0 at ", in_words(place),
                         " went away before all ranks had come, within ", patience.count(), " s"));
  if (answer.magic != Welcome().magic)
    throw CommError(text("who listens at ", in_words(place), " is no rank of tokenview"));
  answer.refusal.back() = '\0';
  if (answer.refusal.front() != '\0')
    throw CommError(text("at ", in_words(place), ": ", answer.refusal.data()));
  socket.read_limit(Transport::Seconds(0));
  return sockets;
}

/// A star: rank 0 has a socket for each rank, the others have one. A thread takes in what comes,
/// always, so that who writes is never stopped for long; on rank 0 it passes on what is for others.
class TcpTransport final : public Transport {
 public:
  TcpTransport(std::int64_t rank, std::int64_t size, std::vector<Socket> sockets, Seconds limit)
      : Transport(rank, size, limit),
        sockets_(std::move(sockets)),
        write_mutexes_(sockets_.size()),
        is_open_(sockets_.size()) {
    for (std::size_t i = 0; i < sockets_.size(); ++i) is_open_[i] = sockets_[i].is_open();
    reader_ = std::thread([this] { take_in(); });
  }

  /// Says goodbye, and leaves when the other ends have nothing more to say or a while has passed:
  /// who closes a socket with unread bytes in it destroys what it wrote.
  ~TcpTransport() override {
    say_goodbye();
    if (rank() != 0) shutdown(sockets_[0].fd(), SHUT_WR);
    is_leaving_ = true;
    reader_.join();
  }

 private:
  void deliver(std::int64_t to, Message message) override {
    if (!write(to, rank(), message)) arrived(rank() == 0 ? to : 0, {0, Kind::lost, {}});
  }

  bool write(std::int64_t to, std::int64_t from, const Message& message) {
    const std::size_t by = rank() == 0 ? std::size_t(to) : 0;
    const FrameHead head{std::uint32_t(from), std::uint32_t(to), message.run,
                         std::uint32_t(message.kind), message.bytes.size()};
    const std::lock_guard lock(write_mutexes_[by]);
    return sockets_[by].write(&head, sizeof(head)) &&
           sockets_[by].write(message.bytes.data(), message.bytes.size());
  }

  void take_in() {
    constexpr Seconds farewell(5);
    Clock::time_point leave_at = Clock::time_point::max();
    while (true) {
      std::vector<pollfd> waiting;
      std::vector<std::size_t> from;
      for (std::size_t i = 0; i < sockets_.size(); ++i)
        if (is_open_[i]) {
          waiting.push_back({sockets_[i].fd(), POLLIN, 0});
          from.push_back(i);
        }
      if (is_leaving_ && leave_at == Clock::time_point::max())
        leave_at = Clock::now() + std::chrono::duration_cast<Clock::duration>(farewell);
      if (is_leaving_ && (waiting.empty() || Clock::now() > leave_at)) return;
      constexpr int look_up_ms = 20;  // for is_leaving_
      if (::poll(waiting.data(), waiting.size(), look_up_ms) <= 0) continue;
      for (std::size_t i = 0; i < waiting.size(); ++i)
        if (waiting[i].revents != 0 && !take_frame(from[i])) close_end(from[i]);
    }
  }

  bool take_frame(std::size_t socket) {
    FrameHead head;
    if (!sockets_[socket].read(&head, sizeof(head)) || head.from >= std::uint64_t(size()) ||
        head.to >= std::uint64_t(size()))
      return false;
    Message message{head.run, Kind(head.kind), Bytes(head.bytes)};
    if (!sockets_[socket].read(message.bytes.data(), message.bytes.size())) return false;
    if (std::int64_t(head.to) != rank()) {
      write(head.to, head.from, message);  // one that is gone misses nothing
      return true;
    }
    arrived(head.from, std::move(message));
    return true;
  }

  /// The stream of a rank has ended. After a goodbye that means nothing; without one rank 0 tells
  /// the others. Either way it gets the end of this stream in return.
  void close_end(std::size_t socket) {
    is_open_[socket] = false;
    arrived(std::int64_t(socket), {0, Kind::lost, {}});
    if (rank() != 0) return;
    for (std::int64_t to = 1; to < size(); ++to)
      if (std::size_t(to) != socket) write(to, std::int64_t(socket), {0, Kind::lost, {}});
    shutdown(sockets_[socket].fd(), SHUT_WR);
  }

  std::vector<Socket> sockets_;  // of rank 0: by rank; else: to rank 0
  std::vector<std::mutex> write_mutexes_;
  std::vector<bool> is_open_;  // of the reader
  std::atomic<bool> is_leaving_{false};
  std::thread reader_;
};

}  // namespace

std::unique_ptr<Transport> tcp_transport(std::int64_t rank, std::int64_t size,
                                         const MeetingPlace& place, Transport::Seconds patience,
                                         Transport::Seconds limit) {
  return std::make_unique<TcpTransport>(
      rank, size,
      rank == 0 ? wait_for_all(size, place, patience) : join_rank_0(rank, size, place, patience),
      limit);
}

}  // namespace tokenview
