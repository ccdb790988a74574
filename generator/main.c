/* olmogen: reads descriptions, and takes each trainer through the stages as straight calls. */
#define _GNU_SOURCE
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "build/build.h"
#include "search.h"

static const char usage[] =
    "usage: olmogen [OPTION]... MODEL.lua...\n"
    "Generates one self-contained trainer for each trainer that the files describe.\n"
    "\n"
    "  -o DIR            where to put the emitted tree (default out/NAME; with several trainers, "
    "DIR/NAME)\n"
    "  -D NAME=VALUE     sets arg.NAME in the description\n"
    "  --target=T        overrides trainer.target: cpu, a card, or an architecture with its "
    "largest card's\n"
    "                    memory; --explain=target lists them\n"
    "  --plan            prints the plan and writes nothing\n"
    "  --plan=html       prints it as a page to explore; two trainers are compared side by side\n"
    "  --search=RANKS    tries the layouts of so many ranks, prints the fastest that fit\n"
    "  --emit-only       writes the sources, builds nothing\n"
    "  --check           writes nothing; fails if the tree on disk is not what would be emitted\n"
    "  --dump=STAGE      prints what a stage gives: load, check, graph, shard, fuse, plan or emit\n"
    "  --explain[=FIELD] describes the language, or one object or field of it\n"
    "  --from-hf=DIR     prints a description of the Hugging Face model whose config.json is in "
    "DIR;\n"
    "                    takes --target and -D sequence_length=N, micro=N, global=N\n"
    "  --init            asks three questions, prints a description that fits; or takes --target "
    "and "
    "-D\n"
    "                    parameters=7B-A1B, ranks=N, sequence_length=N\n"
    "  --bundle          puts NCCL, which trainers of several GPUs open, beside the trainer\n"
    "  --static          links it in, from its archive\n"
    "  --no-fuse         sets trainer.fuse = false: a kernel for each op, to compare with\n"
    "  -j N              jobs of the build (default 2)\n"
    "  -v                says what is written and run\n"
    "  --help, --version\n"
    "\n"
    "Exit status: 0 done, 1 an error in the description or the build, 2 wrong usage, 70 a bug in "
    "olmogen.\n";

struct options {
	const char *out, *target, *dump, *from_hf;
	int plan, emit_only, check, init, no_fuse, verbose; /* 1: given */
	int bundle, with_archive;                           /* --static */
	bool html;                                          /* with plan: as a page */
	int jobs;
	uint64_t ranks; /* to search for; 0: not asked */
	struct define *defs;
	uint32_t ndefs;
};

static _Noreturn void PRINTF(1, 2) bad_usage(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	diag_failed("%s; see olmogen --help", xvprintf(fmt, ap));
	va_end(ap);
	exit(EXIT_USAGE);
}

/* They ask for one thing each, in place of a trainer. */
static void
check_exclusive(const struct options *o)
{
	const char *given[] = { o->plan ? "--plan" : NULL, o->emit_only ? "--emit-only" : NULL,
		o->check ? "--check" : NULL, o->ranks ? "--search" : NULL,
		o->dump ? "--dump" : NULL, o->init ? "--init" : NULL,
		o->from_hf ? "--from-hf" : NULL,
		o->bundle         ? "--bundle"
		: o->with_archive ? "--static"
				  : NULL };
	const char *first = NULL;

	for (unsigned i = 0; i < LEN(given); i++) {
		if (first && given[i])
			bad_usage("%s and %s exclude each other", first, given[i]);
		first = given[i] ? given[i] : first;
	}
	if (o->bundle && o->with_archive)
		bad_usage("--bundle and --static exclude each other");
}

/* Exit status 0, if all that was printed has arrived. */
static int
printed(void)
{
	if (!fflush(stdout) && !ferror(stdout))
		return 0;
	perror("olmogen: error: cannot write to standard output");
	return EXIT_USER;
}

/* Whether --dump asks for this stage. */
static bool
dump(const struct options *o, const char *stage)
{
	return o->dump && !strcmp(o->dump, stage);
}

static bool
show(const struct buf *text)
{
	fwrite(text->s, 1, text->n, stdout);
	return true;
}

/* With bold headings and red refusals at a terminal that has them (NO_COLOR: no-color.org). */
static bool
show_report(const struct buf *text)
{
	const char *no_colour = getenv("NO_COLOR"), *term = getenv("TERM");
	bool plain =
	    !isatty(STDOUT_FILENO) || (no_colour && *no_colour) || !term || !strcmp(term, "dumb");

	if (plain)
		return show(text);
	for (const char *s = text->s, *end; s && *s; s = end + (*end == '\n')) {
		end = s + strcspn(s, "\n");
		bool refused = !strncmp(s, "refused by a build", 18);
		const char *on = refused ? "\033[31m" : *s != ' ' && *s != '\n' ? "\033[1m" : "";
		printf("%s%.*s%s\n", on, (int)(end - s), s, *on ? "\033[0m" : "");
	}
	return true;
}

/* The help that only trials can give, at each error that will be shown. */
static void
answer_questions(const struct options *o)
{
	const struct question *q;

	while ((q = ask_take())) {
		const char *text = diag_shown(q->error) ? remedy_answer(q, !o->plan) : NULL;
		for (size_t n; text && *text; text += n + (text[n] == '\n')) {
			n = strcspn(text, "\n");
			diag_help_of(q->error, xprintf("%.*s", (int)n, text));
		}
	}
}

/* --plan: the text on standard output, or the data of one more plan on the page. */
static bool
show_plan(const struct plan *p, const struct story *story, struct buf *page)
{
	struct buf text = { 0 }, refused = { 0 };

	plan_buildable(p);
	if (diag_count())
		diag_line(&refused);
	while (ask_take()) /* --plan has no room for answers */
		;
	if (page && !emit_has_page(p->graph))
		return diag_failed("%s has too many kinds of layers for a page; --plan prints text",
		    spec_str(p->graph->trainer, F_trainer_name));
	if (page) {
		buf_puts(page, page->n ? "," : "");
		emit_page_data(p, story, refused.n ? refused.s : "", page);
		return true;
	}
	plan_report(p, &text);
	if (refused.n)
		buf_printf(&text, "refused by a build: %s\n", refused.s);
	return show_report(&text);
}

/*
 * The compiler: one checked trainer through all stages. False after a user's error, which was
 * collected.
 */
static bool
compile(struct object *trainer, const char *dir, const struct options *o, struct buf *page)
{
	struct story story = { 0 };
	struct buf text = { 0 }, resolved = { 0 };
	struct tree tree = { 0 };

	size_at(trainer->pos);
	search_recompute(trainer);
	spec_print(trainer, true, &resolved);
	if (dump(o, "check"))
		return show(&resolved);

	const struct target_row *target = target_find(targets, spec_str(trainer, F_trainer_target));
	struct graph *g = graph_build(trainer);
	if (diag_count())
		return false;
	graph_verify(g);
	if (emit_has_page(g) || dump(o, "graph"))
		graph_print(g, &story.graph);
	if (dump(o, "graph"))
		return show(&story.graph);

	struct shard *s = shard(g, target);
	graph_verify(g);
	if (dump(o, "shard")) {
		shard_print(s, &text);
		return show(&text);
	}

	if (emit_has_page(g))
		graph_print(g, &story.shard);
	fuse(s);
	graph_verify(g);
	rankcheck(s);
	if (dump(o, "fuse")) {
		graph_print(g, &text);
		return show(&text);
	}

	struct plan *p = plan(s);
	if (dump(o, "plan")) { /* before the check, so that a faulty plan can be seen */
		plan_print(p, &text);
		show(&text);
	}
	plancheck(p);
	if (dump(o, "plan"))
		return true;
	plan_fits(p);
	if (!o->plan)
		plan_buildable(p);
	if ((o->bundle || o->with_archive) &&
	    (!s->target->kind->nvrtc || s->mesh.size[OM_WORLD] == 1))
		return diag_failed(
		    "%s is for trainers of several GPUs, which need NCCL; %s is of %s",
		    o->bundle ? "--bundle" : "--static", spec_str(trainer, F_trainer_name),
		    s->target->kind->nvrtc ? "one" : "CPUs");
	answer_questions(o);
	if (diag_count())
		return false;
	if (o->plan)
		return show_plan(p, &story, o->html ? page : NULL);

	emit(p, &story, resolved.s, trainer->pos.file, &tree);
	if (dump(o, "emit")) {
		for (uint32_t i = 0; i < tree.n; i++)
			buf_printf(&text, "%8zu %s\n", tree.a[i].text.n, tree.a[i].path);
		return show(&text);
	}
	if (o->check)
		return tree_check(&tree, dir);
	if (!tree_write(&tree, dir, o->verbose))
		return false;
	if (o->emit_only)
		return true;
	if (p->target->kind->nvrtc &&
	    !nvrtc_build(&tree, dir, p->target->arch, o->jobs, o->verbose))
		return false;
	return build(dir, o->jobs,
	    o->bundle         ? "BUNDLE=1"
	    : o->with_archive ? "STATIC=1"
			      : NULL,
	    o->verbose);
}

static bool
find_layout(const struct object *trainer, const struct options *o)
{
	struct buf text = { 0 };
	uint32_t n;
	const struct found *found = search_layouts(trainer, o->target, o->ranks, &n);

	if (found)
		search_print(trainer, found, n, &text);
	return found && show_report(&text);
}

static bool
print_init(const struct options *o)
{
	struct buf text = { 0 };

	return init(o->target, o->defs, o->ndefs, &text) && show(&text);
}

/* All trainers of all files; two of one name would share a folder. */
static bool
compile_files(char **path, int n, const struct options *o)
{
	ARRAY(struct object *) all = { 0 };
	struct buf text = { 0 }, page = { 0 };
	struct tree html = { 0 };
	bool ok = true;

	for (int i = 0; i < n; i++) {
		struct spec one;
		load(path[i], o->defs, o->ndefs, &one);
		for (uint32_t k = 0; k < one.n; k++)
			*PUSH(all) = one.trainer[k];
	}
	if (dump(o, "load")) {
		for (uint32_t i = 0; i < all.n; i++)
			spec_print(all.a[i], false, &text);
		return show(&text) && diag_count() == 0;
	}
	/* all of them, also after errors in load: so that all errors show at once */
	for (uint32_t i = 0; i < all.n; i++) {
		struct value *v = spec_value(all.a[i], F_trainer_fuse);
		if (o->no_fuse) {
			v->set = v->given = true;
			v->i = 0;
		}
		check(all.a[i], targets, o->target);
	}
	for (uint32_t i = 0; i < all.n; i++)
		for (uint32_t k = 0; k < i && !diag_count(); k++) {
			const struct value *a = spec_value(all.a[k], F_trainer_name),
					   *b = spec_value(all.a[i], F_trainer_name);
			if (!a->set || !b->set || strcmp(a->str, b->str))
				continue;
			diag_error(b->pos, "trainer.name = \"%s\" is taken", b->str);
			diag_note(a->pos, "the other trainer of this name is here");
			diag_help(
			    "give each trainer a name of its own, for instance name = \"%s-\" .. i",
			    b->str);
		}
	answer_questions(o);
	if (diag_count())
		return false;
	for (uint32_t i = 0; i < all.n; i++) {
		const struct value *name = spec_value(all.a[i], F_trainer_name);
		const char *dir = o->out && all.n == 1 ? o->out
						       : xprintf("%s/%s", o->out ? o->out : "out",
							     name->set ? name->str : "");
		if (((o->plan && !o->html) || o->ranks) && i)
			putchar('\n');
		if (o->ranks ? !find_layout(all.a[i], o) : !compile(all.a[i], dir, o, &page)) {
			ok = false;
			if (diag_count())
				break;
		} else if (!o->plan && !o->ranks && !o->dump && !o->check) {
			printf("%s%s\n", dir, o->emit_only ? "" : "/trainer");
		}
	}
	if (ok && o->html) {
		emit_page(page.s, &html);
		show(&html.a[0].text);
	}
	return ok;
}

/* " (did you mean X?)", or nothing. */
static const char *
suggest(const char *like)
{
	return like ? xprintf(" (did you mean %s?)", like) : "";
}

/* The argument of an option, a number in 1 .. most. */
static long
whole(const char *word, long most, const char *option)
{
	char *end;
	long n = strtol(word, &end, 10);

	if (end == word || *end || n < 1 || n > most)
		bad_usage("%s%s is not in 1 .. %ld", option, word, most);
	return n;
}

/* The argument of --dump. */
static const char *
stage_named(const char *word)
{
	static const char *const stages[] = { "load", "check", "graph", "shard", "fuse", "plan",
		"emit" };

	for (unsigned i = 0; i < LEN(stages); i++)
		if (!strcmp(word, stages[i]))
			return word;
	bad_usage("--dump=%s%s: the stages are load, check, graph, shard, fuse, plan, emit", word,
	    suggest(diag_closest(word, stages, LEN(stages))));
}

/* The argument of --target. */
static const char *
target_named(const char *word)
{
	if (!target_find(targets, word))
		bad_usage("--target=%s is not known%s; use %s", word,
		    suggest(spec_closest_choice(F_trainer_target, word)),
		    spec_choices(fields[F_trainer_target].choices, "", ""));
	return word;
}

/* The option, and the one that was meant. */
static const char *
unknown_option(const char *given, const struct option *o)
{
	ARRAY(const char *) names = { 0 };

	for (; o->name; o++)
		*PUSH(names) = xprintf("--%s", o->name);
	return xprintf("%s%s", given,
	    suggest(
		diag_closest(xprintf("%.*s", (int)strcspn(given, "="), given), names.a, names.n)));
}

int
main(int argc, char **argv)
{
	enum { DUMP = 256, EXPLAIN, SEARCH, FROM_HF, PLAN, TARGET, HELP, VERSION };
	static struct options o = { .jobs = 2 };
	static const struct option longs[] = {
		{ "plan", optional_argument, NULL, PLAN },
		{ "emit-only", no_argument, &o.emit_only, 1 },
		{ "check", no_argument, &o.check, 1 },
		{ "dump", required_argument, NULL, DUMP },
		{ "explain", optional_argument, NULL, EXPLAIN },
		{ "search", required_argument, NULL, SEARCH },
		{ "from-hf", required_argument, NULL, FROM_HF },
		{ "target", required_argument, NULL, TARGET },
		{ "init", no_argument, &o.init, 1 },
		{ "bundle", no_argument, &o.bundle, 1 },
		{ "static", no_argument, &o.with_archive, 1 },
		{ "no-fuse", no_argument, &o.no_fuse, 1 },
		{ "help", no_argument, NULL, HELP },
		{ "version", no_argument, NULL, VERSION },
		{ 0 },
	};
	int c;

	spec_targets(targets);
	o.defs = xalloc((size_t)argc * sizeof *o.defs);
	opterr = 0;
	while ((c = getopt_long(argc, argv, ":o:D:j:v", longs, NULL)) != -1)
		switch (c) {
		case 0: /* a flag */
			break;
		case 'o':
			if (!*optarg)
				bad_usage("-o wants the name of a folder");
			o.out = optarg;
			break;
		case 'D': {
			char *eq = strchr(optarg, '=');
			if (!eq || eq == optarg)
				bad_usage("-D %s is not NAME=VALUE", optarg);
			*eq = 0;
			o.defs[o.ndefs++] = (struct define){ optarg, eq + 1, false };
			break;
		}
		case 'j':
			o.jobs = (int)whole(optarg, 1024, "-j ");
			break;
		case 'v':
			o.verbose = 1;
			break;
		case DUMP:
			o.dump = stage_named(optarg);
			break;
		case SEARCH:
			o.ranks = (uint64_t)whole(optarg, 1048576, "--search=");
			break;
		case FROM_HF:
			if (!*optarg)
				bad_usage("--from-hf= names no folder");
			o.from_hf = optarg;
			break;
		case EXPLAIN:
			/* "--explain FIELD" too */
			if (!optarg && optind < argc && argv[optind][0] != '-')
				optarg = argv[optind];
			if (optarg && !*optarg)
				bad_usage("--explain= names nothing: --explain=moe is an object, "
					  "--explain=moe.top_k a field, --explain all of them");
			return explain(optarg) ? printed() : EXIT_USAGE;
		case PLAN:
			if (optarg && strcmp(optarg, "html"))
				bad_usage("--plan=%s is not known; --plan prints text, "
					  "--plan=html a page",
				    optarg);
			o.plan = 1;
			o.html = optarg != NULL;
			break;
		case TARGET:
			o.target = target_named(optarg);
			break;
		case HELP:
			fputs(usage, stdout);
			return printed();
		case VERSION:
			puts("olmogen " OLMOGEN_VERSION);
			return printed();
		case ':':
			bad_usage("option %s wants a value", argv[optind - 1]);
		default:
			bad_usage("unknown option %s", unknown_option(argv[optind - 1], longs));
		}
	check_exclusive(&o);
	if ((o.from_hf || o.init) && (o.out || optind < argc))
		bad_usage("--%s prints a description on standard output, and takes no %s",
		    o.init ? "init" : "from-hf", o.out ? "-o" : argv[optind]);
	if (!o.from_hf && !o.init && optind == argc)
		bad_usage("no description given");
	bool ok = o.init      ? print_init(&o)
		  : o.from_hf ? from_hf(o.from_hf, o.target ? target_find(targets, o.target) : NULL,
				    o.defs, o.ndefs)
			      : compile_files(argv + optind, argc - optind, &o);
	bool clean = diag_flush() == 0;
	int status = printed();
	return ok && clean ? status : EXIT_USER;
}
