/* The page: a section for each question, drawn for one plan, or for two side by side. */

const SECTIONS = [
	["overview", "Overview", "What this trainer costs: all of it is decided when it is generated.", overview],
	["mesh", "Mesh", "A world is pipeline stages times data ranks; expert groups are cut out of the data ranks. Ranks that act together are a group.", mesh],
	["pipeline", "Pipeline", "What each stage does when, in one step. The schedule is data in the plan, and was checked for all ranks together.", pipeline],
	["memory", "Memory", "Each rank has one arena. Every buffer has its place before a device is touched.", memory],
	["layer", "Layer", "A kind of layer is written once: its launches in order, with what each reads, writes and costs.", layer],
	["route", "A token's way", "How rows of tokens get to their experts and back, in rowwise form.", route],
	["compiler", "Compiler", "What each stage of the compiler made of the model.", compiler],
];

function start() {
	const plans = JSON.parse(document.getElementById("data").textContent).map(read_plan);
	const main = el("main", { id: "main" }), two = [0, Math.min(1, plans.length - 1)];
	const page = { plans, sections: {} };
	const nav = el("nav", { "aria-label": "Sections" }, SECTIONS.map(([id, name]) => el("a", { href: `#${id}` }, name)));
	const pick = (i) => choice(i ? "B" : "A", plans.map((p, k) => [k, p.name]), two[i], (v) => { two[i] = Number(v); draw(); });
	document.title = `${plans.map((p) => p.name).join(" and ")}: olmogen plan`;
	document.body.prepend(el("a", { class: "skip", href: "#main" }, "Skip to the plan"),
		el("header", { class: "top" }, el("h1", null, plans.length > 1 ? "Two plans" : plans[0].name),
			plans.length > 1 ? el("span", { class: "bar" }, pick(0), pick(1))
				: el("span", { class: "dim" }, plans[0].target), nav, theme_button()), main);

	function draw() {
		const shown = plans.length > 1 ? two.map((i) => plans[i]) : [plans[0]];
		drawings.clear();
		main.replaceChildren(...SECTIONS.map(([id, name, intro, make]) => {
			const pair = el("div", { class: shown.length > 1 ? "pair" : "" });
			const section = el("section", { id, "aria-labelledby": `${id}-title` },
				el("h2", { id: `${id}-title` }, name), el("p", { class: "dim" }, intro),
				id === "overview" && shown.length > 1 ? differences(...shown) : "", pair);
			const boxes = shown.map((p, i) => pair.appendChild(el("div", shown.length > 1
				? { role: "group", "aria-label": `Plan ${"AB"[i]}: ${p.name}` } : null,
				shown.length > 1 ? el("h3", null, `${"AB"[i]}: ${p.name}, ${p.target}`) : "")));
			page.sections[id] = boxes;
			const fill_in = () => boxes.forEach((b, i) => make(shown[i], b));
			if (id === "overview") {
				fill_in();
			} else {
				section.style.minHeight = "30rem"; /* links lead to the right place before it is drawn */
				when_near(section, () => { fill_in(); section.style.minHeight = ""; });
			}
			return section;
		}));
		follow_sections(nav, main);
	}
	draw();
	window.olmogen = page;
}
