/** The words that tell one group of texts from the others. */

const WORD = /[\p{L}][\p{L}\p{M}'’-]{2,}/gu;
const COMMON = new Set(
  (
    "the and for that with this was were are not but you his her she they them their have has had from which who " +
    "its into than then there here when where what will would could should been being more most some such only other " +
    "one two all any can did does done out over upon very own our your said say says about after again also because " +
    "before between both down each every few how just like made make many may might much must never now off old once " +
    "though through too under until well while why yet those these him himself herself itself shall let ever even"
  ).split(" "),
);

/** Group -> its words, most telling first: frequent in the group's texts, rare in the others'. */
export function keywords(texts, groups, count = 3) {
  const inAll = new Map();
  const inGroup = new Map();
  const sizes = new Map();
  texts.forEach((text, index) => {
    const group = groups[index];
    sizes.set(group, (sizes.get(group) ?? 0) + 1);
    if (!inGroup.has(group)) inGroup.set(group, new Map());
    for (const word of new Set(text.toLowerCase().match(WORD) ?? [])) {
      if (COMMON.has(word)) continue;
      inAll.set(word, (inAll.get(word) ?? 0) + 1);
      inGroup.get(group).set(word, (inGroup.get(group).get(word) ?? 0) + 1);
    }
  });
  const found = new Map();
  for (const [group, counts] of inGroup) {
    const share = (word) => counts.get(word) / sizes.get(group);
    const elsewhere = (word) => (inAll.get(word) - counts.get(word) + 0.5) / (texts.length - sizes.get(group) + 1);
    const least = sizes.get(group) > 6 ? 2 : 1;
    const score = (word) => share(word) * Math.log(share(word) / elsewhere(word));
    const order = [...counts.keys()].filter((word) => counts.get(word) >= least);
    order.sort((a, b) => score(b) - score(a) || (a < b ? -1 : 1));
    found.set(group, order.slice(0, count));
  }
  return found;
}
