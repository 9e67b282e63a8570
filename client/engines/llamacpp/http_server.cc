#include "client/engines/llamacpp/http_server.h"

#include <httplib.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <ctime>

#include "client/engines/llamacpp/api_reply.h"
#include "client/engines/llamacpp/api_request.h"
#include "client/engines/llamacpp/bounded_pool.h"
#include "client/engines/llamacpp/peer_socket.h"

namespace kvtier::llamacpp {
namespace {

constexpr char kJson[] = "application/json", kEvents[] = "text/event-stream";
/// A stream without text for so long gets a comment, which finds out whether the client is still there.
constexpr Duration kStreamLook = std::chrono::seconds(1);
/// The engine ends requests by their deadline; one that is stuck is given up a little later.
constexpr Duration kDeadlineGrace = std::chrono::seconds(10);
/// OpenAI's default for completions.
constexpr uint32_t kCompletionTokensDefault = 16;
constexpr time_t kSocketTimeoutS = 10;
constexpr Duration kStuck = std::chrono::seconds(60);
/// Connections that wait unaccepted; the library's own number is 5, and the kernel lets the sixth try again a
/// second later.
constexpr int kBacklog = 128;
/// What nginx logs for it; nobody reads it.
constexpr int kClientClosedRequest = 499;

void Answer(httplib::Response& response, int status, std::string body) {
  response.status = status;
  response.set_content(std::move(body), kJson);
}

void AnswerError(httplib::Response& response, const Status& status) {
  if (HttpStatusOf(status.code()) == 429) response.set_header("Retry-After", "1");
  Answer(response, HttpStatusOf(status.code()), ErrorReply(status));
}

/// Why a generation gave no answer; OK when it did.
Status FailureOf(const GenerationEnd& end) {
  switch (end.reason) {
    case FinishReason::kStop:
    case FinishReason::kLength:
      return Status::Ok();
    case FinishReason::kDeadline:
      return Status(Code::kDeadlineExceeded, "the request's time is over");
    case FinishReason::kCancelled:
      return Status(Code::kCancelled, "the request was cancelled");
    default:
      return end.status;
  }
}

class ConnectionPool final : public httplib::TaskQueue {
 public:
  explicit ConnectionPool(size_t connections) : pool_(connections, connections) {}
  void enqueue(std::function<void()> job) override { pool_.Add(std::move(job)); }
  void shutdown() override { pool_.Finish(); }

 private:
  BoundedPool pool_;
};

/// One streamed answer, piece by piece as the client takes it.
class EventStream {
 public:
  EventStream(std::shared_ptr<Generation> generation, ReplyHead head, bool usage, TimePoint give_up)
      : generation_(std::move(generation)), head_(std::move(head)), usage_(usage), give_up_(give_up) {}
  ~EventStream() { generation_->Cancel(); }
  EventStream(const EventStream&) = delete;
  EventStream& operator=(const EventStream&) = delete;

  /// False when the client is gone.
  bool Next(httplib::DataSink& sink, TimePoint now) {
    const Generation::Chunk chunk = generation_->Take(kStreamLook);
    std::string events = std::exchange(begun_, true) ? "" : FirstEvent(head_);
    if (!chunk.text.empty()) events += TextEvent(head_, chunk.text);
    const bool given_up = !chunk.end.has_value() && now >= give_up_;
    if (chunk.end.has_value()) events += LastEvents(*chunk.end);
    if (given_up) events += ErrorEvent(Status(Code::kDeadlineExceeded, "the engine does not answer"));
    if (events.empty()) events = ": waiting\n\n";
    if (!sink.write(events.data(), events.size())) return false;
    if (chunk.end.has_value() || given_up) sink.done();
    return true;
  }

 private:
  std::string LastEvents(const GenerationEnd& end) const {
    const Status failure = FailureOf(end);
    if (!failure.ok()) return ErrorEvent(failure) + kDoneEvent;
    return EndEvent(head_, end) + (usage_ ? UsageEvent(head_, end) : "") + kDoneEvent;
  }

  const std::shared_ptr<Generation> generation_;
  const ReplyHead head_;
  const bool usage_;
  const TimePoint give_up_;
  bool begun_ = false;
};

}  // namespace

class HttpServer::Impl {
 public:
  Impl(Scheduler& scheduler, const LlamaText& text, HttpOptions options, const Clock& clock)
      : scheduler_(scheduler), text_(text), options_(std::move(options)), clock_(clock) {
    server_.new_task_queue = [this] { return new ConnectionPool(options_.connections_max); };
    server_.set_payload_max_length(options_.body_bytes_max);
    server_.set_keep_alive_max_count(1);  // an idle connection would hold a thread
    server_.set_read_timeout(kSocketTimeoutS);
    server_.set_write_timeout(kSocketTimeoutS);
    server_.set_tcp_nodelay(true);
    // Without SO_REUSEPORT, which the library sets: with it two servers share a port, and each answers some.
    server_.set_socket_options([this](socket_t socket) {
      listening_ = socket;
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    server_.Get("/health", [this](const auto&, auto& response) { Health(response); });
    server_.Get("/v1/models", [this](const auto&, auto& response) {
      Answer(response, 200, ModelsReply(options_.model_name, std::time(nullptr)));
    });
    Post("/v1/completions", ApiKind::kCompletion);
    Post("/v1/chat/completions", ApiKind::kChat);
    // Only for what httplib refuses itself: our own answers have a body.
    server_.set_error_handler([](const auto&, auto& response) {
      if (!response.body.empty()) return;
      const Status status = response.status == 404
                                ? Status(Code::kNotFound, "there is nothing of that name")
                                : Status(Code::kInvalidArgument, "the request is malformed or too large");
      response.set_content(ErrorReply(status), kJson);
    });
    server_.set_exception_handler([](const auto&, auto& response, const std::exception_ptr&) {
      AnswerError(response, Status(Code::kInternal, "the request failed"));
    });
  }

  Result<uint16_t> Bind() {
    const int port = options_.port == 0 ? server_.bind_to_any_port(options_.host)
                     : server_.bind_to_port(options_.host, options_.port) ? options_.port
                                                                          : -1;
    if (port > 0 && ::listen(listening_, kBacklog) == 0) return static_cast<uint16_t>(port);
    return Status(Code::kUnavailable,
                  "cannot listen on " + options_.host + ":" + std::to_string(options_.port));
  }
  void Serve() { server_.listen_after_bind(); }
  void Stop() { server_.stop(); }

 private:
  void Health(httplib::Response& response) const {
    const SchedulerState state = scheduler_.State();
    const bool healthy = !state.stopping && state.since_last_step < kStuck;
    Answer(response, healthy ? 200 : 503, HealthReply(state, options_.cache_off));
  }

  /// Reads the body itself: the library takes no more than 8 KiB of what curl -d calls a form.
  void Post(const char* path, ApiKind kind) {
    server_.Post(path, [this, kind](const httplib::Request& request, httplib::Response& response,
                                    const httplib::ContentReader& read) {
      std::string body;
      const bool whole = read([&](const char* bytes, size_t count) {
        if (count > options_.body_bytes_max - body.size()) return false;
        body.append(bytes, count);
        return true;
      });
      if (!whole) {
        if (response.status < 400) response.status = 413;
        return;
      }
      Generate(kind, request, body, response);
    });
  }

  void Generate(ApiKind kind, const httplib::Request& request, const std::string& body,
                httplib::Response& response) {
    Result<ApiRequest> parsed = kind == ApiKind::kChat ? ParseChat(body) : ParseCompletion(body);
    if (!parsed.ok()) return AnswerError(response, parsed.status());
    const TimePoint deadline = clock_.Now() + options_.request_timeout;
    const Result<std::shared_ptr<Generation>> generation = Submit(kind, *parsed, deadline);
    if (!generation.ok()) return AnswerError(response, generation.status());
    const ReplyHead head = {
        .kind = kind,
        .id = (kind == ApiKind::kChat ? "chatcmpl-" : "cmpl-") + std::to_string(++requests_),
        .model = options_.model_name,
        .created_s = std::time(nullptr)};
    if (parsed->stream) {
      auto stream =
          std::make_shared<EventStream>(*generation, head, parsed->stream_usage, deadline + kDeadlineGrace);
      response.set_header("Cache-Control", "no-cache");
      response.set_chunked_content_provider(kEvents, [this, stream](size_t, httplib::DataSink& sink) {
        return stream->Next(sink, clock_.Now());
      });
    } else {
      AnswerWhole(**generation, head, deadline + kDeadlineGrace, PeerSocket(request), response);
    }
  }

  Result<std::shared_ptr<Generation>> Submit(ApiKind kind, ApiRequest& parsed, TimePoint deadline) {
    GenerationRequest generation;
    KVTIER_ASSIGN(generation.tokens,
                  kind == ApiKind::kChat ? text_.ChatTokens(parsed.messages) : text_.Tokenize(parsed.prompt));
    generation.max_tokens = parsed.max_tokens.value_or(DefaultTokens(kind, generation.tokens.size()));
    generation.sampling = parsed.sampling;
    generation.stops = std::move(parsed.stops);
    generation.deadline = deadline;
    return scheduler_.Submit(std::move(generation));
  }

  uint32_t DefaultTokens(ApiKind kind, size_t prompt_tokens) const {
    if (kind == ApiKind::kCompletion) return kCompletionTokensDefault;
    const size_t context = scheduler_.options().sequence_tokens;
    const size_t room = prompt_tokens < context ? context - prompt_tokens : 1;
    return static_cast<uint32_t>(std::min<size_t>(room, options_.chat_tokens_default));
  }

  void AnswerWhole(Generation& generation, const ReplyHead& head, TimePoint give_up, PeerSocket peer,
                   httplib::Response& response) const {
    std::string text;
    for (;;) {
      Generation::Chunk chunk = generation.Take(kStreamLook);
      text += chunk.text;
      if (chunk.end.has_value()) {
        const Status failure = FailureOf(*chunk.end);
        if (!failure.ok()) return AnswerError(response, failure);
        return Answer(response, 200, WholeReply(head, text, *chunk.end));
      }
      if (clock_.Now() >= give_up) {
        generation.Cancel();
        return AnswerError(response, Status(Code::kDeadlineExceeded, "the engine does not answer"));
      }
      if (peer.HasLeft()) {
        generation.Cancel();
        response.status = kClientClosedRequest;
        return;
      }
    }
  }

  Scheduler& scheduler_;
  const LlamaText& text_;
  const HttpOptions options_;
  const Clock& clock_;
  std::atomic<uint64_t> requests_ = 0;
  socket_t listening_ = INVALID_SOCKET;
  httplib::Server server_;
};

HttpServer::HttpServer(Scheduler& scheduler, const LlamaText& text, HttpOptions options, const Clock& clock)
    : impl_(std::make_unique<Impl>(scheduler, text, std::move(options), clock)) {}
HttpServer::~HttpServer() = default;
Result<uint16_t> HttpServer::Bind() {
  return impl_->Bind();
}
void HttpServer::Serve() {
  impl_->Serve();
}
void HttpServer::Stop() {
  impl_->Stop();
}

}  // namespace kvtier::llamacpp
