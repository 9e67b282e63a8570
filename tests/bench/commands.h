#pragma once

namespace CLI {
class App;
}

namespace kvtier::bench {

/// The subcommands of kvtier-bench. Each adds itself to `app` with its options and, where it was given, sets
/// `exit_status` when the command line is parsed; both outlive the parsing.

#ifdef KVTIER_BENCH_LADDER
/// `ladder` and the `echo-server` that it starts.
void AddLadder(CLI::App& app, int& exit_status);
#endif
/// `codecs`: every codec beside memcpy.
void AddCodecs(CLI::App& app, int& exit_status);
/// `attention`: decode attention on encoded blocks beside FP16.
void AddAttention(CLI::App& app, int& exit_status);
/// `storage`: the cold store beside fio.
void AddStorage(CLI::App& app, int& exit_status);
/// `serve`: the load generator for servers, peers/serve.py.
void AddServe(CLI::App& app, int& exit_status);
/// `quality`: what they cost on real data.
void AddQuality(CLI::App& app, int& exit_status);

}  // namespace kvtier::bench
